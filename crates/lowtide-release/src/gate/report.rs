//! What a gate says of itself, and what it tells work: plain data.

use std::fmt;

use serde::Serialize;

use crate::home;

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

/// What work does after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "work that does not stop when it is told to keeps the gate from closing"]
pub enum Step {
    /// Work continues.
    Go,
    /// Work ends and drops its pass.
    Abort,
    /// Work goes back to its queue and drops its pass.
    Retract,
}

/// The gate could not be closed. It is in the state that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
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
}

impl Busy {
    /// The answer of a gate that a forked child inherited.
    pub(super) const INHERITED: Busy =
        Busy { active: 0, closing: false, own: false, inherited: true };
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A release has the gate closed when no pass is active. The holder of one may have another
        // closer waiting for it.
        if self.inherited {
            f.write_str(&home::refusal("gate"))
        } else if self.own && self.active == 0 {
            f.write_str(
                "the release that has the gate closed runs this code: it would wait for itself",
            )
        } else if self.own {
            f.write_str("this thread holds a pass itself: it would wait for itself")
        } else if self.closing {
            f.write_str("the gate is closed, or being closed, by another caller")
        } else {
            let passes = if self.active == 1 { "pass is" } else { "passes are" };
            write!(f, "{} {passes} still active", self.active)
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
