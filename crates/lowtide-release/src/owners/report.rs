//! What a shutdown would do, and what it did, as plain data.

use std::fmt;

use lowtide_device::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Holder;

/// The order in which a shutdown would drop: every borrower before what it borrows, otherwise last
/// registered first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Plan {
    /// What would go, first to last.
    pub steps: Vec<Planned>,
    /// Places with nothing in them, in the order of their registration.
    pub empty: Vec<String>,
    /// Owners that borrow each other.
    pub cycles: Vec<Cycle>,
}

/// One that would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// What goes when it goes, where it says so.
    pub bytes: Option<Bytes>,
    /// What it borrows: what it said, and what was lent to a path below its name.
    pub borrows: Vec<String>,
}

/// Owners that borrow each other. It stops nothing: the last registered of them goes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cycle {
    /// Each borrows the next, and the last one the first. The first is the one that goes while it
    /// is still borrowed.
    pub names: Vec<String>,
}

/// What a shutdown did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Shutdown {
    /// What was dropped, in this order.
    pub dropped: Vec<Dropped>,
    /// Places with nothing in them when it began.
    pub empty: Vec<String>,
    /// Who still holds what should be gone, of this shutdown or before.
    pub holders: Vec<Holder>,
    /// Owners that borrow each other.
    pub cycles: Vec<Cycle>,
}

/// One that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Dropped {
    /// Its name.
    pub name: String,
    /// What goes with it, where it says so.
    pub bytes: Option<Bytes>,
    /// What became of it.
    pub outcome: DropOutcome,
}

/// What became of one that was dropped, when all were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
// The crate has another outcome, of a rung, and shows this one as `DropOutcome`.
pub enum DropOutcome {
    /// The last reference fell.
    Gone,
    /// Somebody still holds it: see [`Shutdown::holders`].
    Held,
    /// A `Drop` panicked. What it had not let go by then may be lost.
    Panicked {
        /// What it said.
        message: String,
    },
}

impl Shutdown {
    /// Whether everything that was ever dropped here is gone, without a panic.
    pub fn is_clean(&self) -> bool {
        let panicked = |dropped: &Dropped| matches!(dropped.outcome, DropOutcome::Panicked { .. });
        self.holders.is_empty() && !self.dropped.iter().any(panicked)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            writeln!(f, "nothing to drop")?;
        }
        for (step, number) in self.steps.iter().zip(1..) {
            write!(f, "{number}. {}", step.name)?;
            write_bytes(f, step.bytes)?;
            if !step.borrows.is_empty() {
                write!(f, ", borrows {}", step.borrows.join(", "))?;
            }
            writeln!(f)?;
        }
        write_rest(f, &self.empty, &self.cycles)
    }
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped.is_empty() {
            writeln!(f, "nothing to drop")?;
        }
        for (dropped, number) in self.dropped.iter().zip(1..) {
            write!(f, "{number}. {}", dropped.name)?;
            write_bytes(f, dropped.bytes)?;
            match &dropped.outcome {
                DropOutcome::Gone => writeln!(f, ": gone")?,
                DropOutcome::Held => writeln!(f, ": still held")?,
                DropOutcome::Panicked { message } => writeln!(f, ": panicked: {message}")?,
            }
        }
        for Holder { path, holds, count, held, .. } in &self.holders {
            let plural = if *count == 1 { "" } else { "s" };
            write!(f, "{path} holds {holds}: {count} reference{plural}")?;
            write_bytes(f, *held)?;
            writeln!(f)?;
        }
        write_rest(f, &self.empty, &self.cycles)
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: Option<Bytes>) -> fmt::Result {
    bytes.map_or(Ok(()), |bytes| write!(f, ", {bytes}"))
}

fn write_rest(f: &mut fmt::Formatter<'_>, empty: &[String], cycles: &[Cycle]) -> fmt::Result {
    if !empty.is_empty() {
        writeln!(f, "empty: {}", empty.join(", "))?;
    }
    for Cycle { names } in cycles {
        let first = names.first().map_or("", String::as_str);
        let around = names.join(" borrows ");
        writeln!(f, "cycle: {around} borrows {first}; {first} goes first")?;
    }
    Ok(())
}
