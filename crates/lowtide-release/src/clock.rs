//! Clocks: time comes from outside.
//!
//! Nothing in this crate reads the machine's time or waits by itself: the caller brings a clock. So an
//! idle policy of an hour is tested in a millisecond, and a rung that hangs is left behind in a
//! simulation as it is in production.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_types::debug_as;

use crate::sync::unpoisoned;

/// Reads the time, waits, and runs work within a time limit.
pub trait Clock: Send + Sync {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;

    /// Waits for this long.
    fn pause(&self, duration: Duration);

    /// Returns the time since an earlier reading.
    fn since(&self, earlier: Duration) -> Duration {
        self.now().saturating_sub(earlier)
    }

    /// Returns whether the caller was interrupted. Waits then end early and nothing new is begun; a
    /// closed gate is still opened and a lowered setting restored.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Runs work and waits for it no longer than `limit`. Returns whether it ended by then. If not, the
    /// work goes on by itself and nobody waits for it.
    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool;
}

/// A clock for tests that moves only when it is told to. Every pause is over at once, and work that
/// pauses longer than its limit counts as left behind.
#[derive(Clone, Default)]
pub struct ManualClock {
    now: Arc<Mutex<Duration>>,
}

impl ManualClock {
    /// Moves the time forward.
    pub fn advance(&self, by: Duration) {
        *unpoisoned(self.now.lock()) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *unpoisoned(self.now.lock())
    }

    fn pause(&self, duration: Duration) {
        self.advance(duration);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        let began = self.now();
        work();
        self.since(began) <= limit
    }
}

debug_as!(ManualClock, |it| "ManualClock({:?})", it.now());
