//! When the process falls asleep by itself: the idle policy of `lowtide-release`, fed with the touches that
//! the gate counts.
//!
//! A look that finds new touches is a task that has just ended. So pollers, frees and waits, which are no
//! touches, do not keep the process awake; and if touches come soon after a sleep, the quiet time grows.

use std::time::Duration;

use lowtide_device::neighbours;
use lowtide_release::{Decision, Idle, Ticket};

use crate::gate;

/// The most and the least time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The touches that were seen so far, and the policy.
pub(crate) struct Watch {
    idle: Idle,
    touches: u64,
}

impl Watch {
    /// Creates a watch with the policy.
    pub(crate) fn new(idle: Idle) -> Watch {
        Watch { idle, touches: 0 }
    }

    /// Counts what happened since the last look. Somebody who wakes the process counts too.
    pub(crate) fn look(&mut self, was_woken: bool) {
        let touches = gate::touches();
        if touches != self.touches || was_woken {
            self.touches = touches;
            drop(self.idle.task());
        }
    }

    /// Returns a ticket if it is time to sleep.
    pub(crate) fn due(&self, has_memory: impl FnOnce() -> bool) -> Option<Ticket> {
        // Where they cannot be seen, `status` says so.
        let neighbours = || neighbours::of(std::process::id()).unwrap_or_default();
        match self.idle.due_beside(has_memory, neighbours) {
            Decision::Release(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// Returns how long to wait before the next look: short beside the quiet time, so that the process
    /// sleeps soon after it.
    pub(crate) fn pause(&self) -> Duration {
        (self.idle.options().after / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}
