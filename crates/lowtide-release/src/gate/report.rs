//! What a gate says of itself, and what it tells work: plain data.

use std::fmt;

use lowtide_types::words;
use serde::Serialize;

use crate::fork;

/// The instruction that running work receives when the gate closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Work ends.
    Abort,
    /// Work goes back to its queue.
    Retract,
    /// Work stops at its next checkpoint and continues there later.
    InPlace,
    /// Work is told nothing and ends by itself. A release closes the gate like this.
    Drain,
}

words! {
    /// What work does after a checkpoint.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[must_use = "work that does not stop when it is told to keeps the gate from closing"]
    pub enum Step {
        /// Work continues.
        Go = "go",
        /// Work ends and drops its pass.
        Abort = "abort",
        /// Work goes back to its queue and drops its pass.
        Retract = "retract",
    }
}

/// The gate could not be closed. It is in the state that it had before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Busy {
    /// The number of passes that were active.
    pub active: usize,
    /// Whether another closer had the gate closed, or was closing it.
    pub closing: bool,
    /// Whether the calling thread holds one of the passes, or is part of the release that has the gate
    /// closed: it would wait for itself.
    pub own: bool,
    /// Whether the gate belongs to the parent process: a forked child inherited it.
    pub inherited: bool,
    /// The places where the active [owned](super::OwnedPass) passes were taken: `src/serve.rs:44`. Others
    /// are on the thread that took them, and are not known by place.
    pub since: Vec<String>,
    /// The parts of releases that keep the gate closed, because they exceeded their time limits and
    /// still run: `the hook "comm" of the rung libraries still runs, since 21.0 s ago`.
    pub kept_by: Vec<String>,
}

impl Busy {
    /// Returns the answer of a gate that a forked child inherited.
    pub(super) fn inherited() -> Busy {
        Busy { inherited: true, ..Busy::default() }
    }

    fn since_text(&self) -> String {
        if self.since.is_empty() {
            String::new()
        } else {
            format!(", held since {}", self.since.join(", "))
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A release has the gate closed when no pass is active. The holder of one may have another
        // closer waiting for it.
        if self.inherited {
            f.write_str(&fork::refusal("gate"))
        } else if self.own && self.active == 0 {
            f.write_str(
                "the release or pause that has the gate closed runs this code: it would wait for itself",
            )
        } else if self.own {
            f.write_str("this thread holds a pass itself: it would wait for itself")
        } else if !self.kept_by.is_empty() {
            write!(f, "the gate stays closed: {}", self.kept_by.join("; "))
        } else if self.closing {
            f.write_str("the gate is closed, or being closed, by another caller")?;
            if self.active > 0 {
                write!(f, ", who waits for work{}", self.since_text())
            } else {
                Ok(())
            }
        } else {
            let passes = if self.active == 1 { "pass is" } else { "passes are" };
            write!(f, "{} {passes} still active{}", self.active, self.since_text())
        }
    }
}

impl std::error::Error for Busy {}

/// The state of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GateState {
    /// Whether work may enter. A gate that is not open and has active passes is still closing.
    pub open: bool,
    /// The number of active passes.
    pub active: usize,
    /// The number of passes that are parked at a checkpoint until the gate opens.
    pub parked: usize,
    /// The number of callers that wait to enter.
    pub waiting: usize,
}
