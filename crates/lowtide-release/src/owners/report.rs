//! The plan of a shutdown and its result: plain data, and text for people.

use std::fmt;

use lowtide_types::{Bytes, Holder};
use schemars::JsonSchema;
use serde::Serialize;

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
