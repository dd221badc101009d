//! What owners report: the plan of a shutdown, its result, and the paths by which owners are held. Plain
//! data, and text for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use lowtide_types::{Bytes, Holder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The order in which a shutdown would drop owners: every borrower before what it borrows, otherwise
/// the last registered first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Plan {
    /// The owners that would be dropped, first to last.
    pub steps: Vec<Planned>,
    /// Entries without a value, in the order of their registration.
    pub empty: Vec<String>,
    /// Owners that borrow each other.
    pub cycles: Vec<Cycle>,
}

/// An owner that would be dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Planned {
    /// The name of the owner.
    pub name: String,
    /// The memory that is freed with it, where it can measure that.
    pub bytes: Option<Bytes>,
    /// The owners that it borrows: those it declared, and those lent to a path below its name.
    pub borrows: Vec<String>,
}

/// Owners that borrow each other. They are dropped all the same, the last registered first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cycle {
    /// The names. Each borrows the next, and the last one the first. The first is dropped while it is
    /// still borrowed.
    pub names: Vec<String>,
}

/// The result of a shutdown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Shutdown {
    /// The owners that were dropped, in order.
    pub dropped: Vec<Dropped>,
    /// Entries that had no value when the shutdown began.
    pub empty: Vec<String>,
    /// References that hold values dropped by this shutdown or before.
    pub holders: Vec<Holder>,
    /// Owners that borrow each other.
    pub cycles: Vec<Cycle>,
}

/// An owner that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Dropped {
    /// The name of the owner.
    pub name: String,
    /// The memory that is freed with it, where it can measure that.
    pub bytes: Option<Bytes>,
    /// The result.
    pub outcome: DropOutcome,
}

/// The result for one owner, after all were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DropOutcome {
    /// The last reference was dropped.
    Gone,
    /// References hold the value: see [`Shutdown::holders`].
    Held,
    /// A `Drop` panicked. What it had not freed by then may be lost.
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

impl Shutdown {
    /// Returns whether every dropped value is gone, without a panic.
    pub fn is_clean(&self) -> bool {
        let panicked = |dropped: &Dropped| matches!(dropped.outcome, DropOutcome::Panicked { .. });
        self.holders.is_empty() && !self.dropped.iter().any(panicked)
    }
}

// Lines are joined: `println!` ends the last one.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().zip(1..).map(|(step, number)| {
            let borrows = match step.borrows.as_slice() {
                [] => String::new(),
                borrows => format!(", borrows {}", borrows.join(", ")),
            };
            format!("{number}. {}{}{borrows}", step.name, size_text(step.bytes))
        });
        f.write_str(&lines(steps, &self.empty, &self.cycles))
    }
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped.iter().zip(1..).map(|(dropped, number)| {
            let outcome = match &dropped.outcome {
                DropOutcome::Gone => "gone",
                DropOutcome::Held => "still held",
                DropOutcome::Panicked { message } => &format!("panicked: {message}"),
            };
            format!("{number}. {}{}: {outcome}", dropped.name, size_text(dropped.bytes))
        });
        let holders = self.holders.iter().map(|holder| {
            let (Holder { path, holds, count, held, .. }, since) = (holder, holder.since_text());
            let plural = if *count == 1 { "" } else { "s" };
            format!("{path} holds {holds}{since}: {count} reference{plural}{}", size_text(*held))
        });
        f.write_str(&lines(dropped.chain(holders), &self.empty, &self.cycles))
    }
}

fn size_text(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", {bytes}"))
}

fn lines(owners: impl Iterator<Item = String>, empty: &[String], cycles: &[Cycle]) -> String {
    let mut lines: Vec<String> = owners.collect();
    if lines.is_empty() {
        lines.push("nothing to drop".to_owned());
    }
    if !empty.is_empty() {
        lines.push(format!("empty: {}", empty.join(", ")));
    }
    for Cycle { names } in cycles {
        let first = names.first().map_or("", String::as_str);
        let around = names.join(" borrows ");
        lines.push(format!("cycle: {around} borrows {first}; {first} goes first"));
    }
    lines.join("\n")
}

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
