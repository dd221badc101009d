//! The paths by which owners are held, and the error of an audit that finds new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The path of references that nobody named.
pub(super) const UNNAMED: &str = "(unnamed)";

/// The paths by which owners are held, at one moment. Keep it in a file, and a test that reads the file
/// finds a reference that is added next month.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paths {
    /// The paths that have a name: what was lent, and what owners declared to borrow.
    pub named: BTreeSet<HeldPath>,
    /// The number of references without a name, by owner.
    #[serde(default)]
    pub unnamed: BTreeMap<String, usize>,
}

/// An owner, and the path of a reference to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct HeldPath {
    /// The owner: `runner.model`.
    pub holds: String,
    /// The path: `runner.pooling.model`.
    pub path: String,
}

impl Paths {
    /// Returns the paths that are not in `accepted`; of references without a name, the surplus.
    #[must_use]
    pub fn beyond(&self, accepted: &Paths) -> Paths {
        let surplus = |(holds, count): (&String, &usize)| {
            let more = count.saturating_sub(accepted.unnamed.get(holds).copied().unwrap_or(0));
            (more > 0).then(|| (holds.clone(), more))
        };
        Paths {
            named: self.named.difference(&accepted.named).cloned().collect(),
            unnamed: self.unnamed.iter().filter_map(surplus).collect(),
        }
    }

    /// Returns whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.unnamed.is_empty()
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|HeldPath { holds, path }| format!("{path} -> {holds}"));
        let unnamed =
            self.unnamed.iter().map(|(holds, count)| format!("{UNNAMED} -> {holds} ({count})"));
        f.write_str(&named.chain(unnamed).collect::<Vec<_>>().join(", "))
    }
}

/// The error of an audit: owners are held by paths that were not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, JsonSchema)]
#[error(
    "new paths hold owners: {paths}. Drop each reference before a shutdown, or accept it with \
     `Owners::accept`; `Owned::lend` gives a name to a reference that has none"
)]
#[non_exhaustive]
pub struct NewPaths {
    /// The new paths.
    pub paths: Paths,
}
