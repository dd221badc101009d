//! Paths by which owners are held, and the audit that finds new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// By which paths owners are held, at one moment. Keep it in a file, and a reference that somebody
/// adds next month is found by the test that reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paths {
    /// The paths that have a name: what was lent, and what owners said they borrow.
    pub named: BTreeSet<HeldPath>,
    /// By owner, how many references there are that nobody named.
    #[serde(default)]
    pub unnamed: BTreeMap<String, usize>,
}

/// An owner, and where it is held.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct HeldPath {
    /// What is held: `runner.model`.
    pub holds: String,
    /// Where: `runner.pooling.model`.
    pub path: String,
}

impl Paths {
    /// What is here and not in `accepted`; of references without a name, how many more.
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

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.unnamed.is_empty()
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|HeldPath { holds, path }| format!("{path} -> {holds}"));
        let unnamed = self
            .unnamed
            .iter()
            .map(|(holds, count)| format!("{} -> {holds} ({count})", super::UNNAMED));
        f.write_str(&named.chain(unnamed).collect::<Vec<_>>().join(", "))
    }
}

/// Owners are held by paths that were not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, JsonSchema)]
#[error(
    "new paths hold owners: {paths}. Give each reference back before a shutdown, or accept it with \
     `Owners::accept`; `Owned::lend` gives a name to one that has none"
)]
#[non_exhaustive]
pub struct NewPaths {
    /// The new ones only.
    pub paths: Paths,
}
