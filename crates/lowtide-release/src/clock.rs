//! Time, from outside.
//!
//! Nothing in this crate asks the machine for the time or waits by itself: whoever builds a release
//! brings a clock. So an idle policy of an hour is tested in a millisecond, and a rung that hangs is
//! cut off in a simulation as it is in the field.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a release knows of time.
pub trait Clock: Send + Sync {
    /// Time since some moment that stays the same.
    fn now(&self) -> Duration;

    /// Lets so much time pass.
    fn pause(&self, duration: Duration);

    /// How long it is since then.
    fn since(&self, earlier: Duration) -> Duration {
        self.now().saturating_sub(earlier)
    }

    /// Whether whoever waits wants to wait no longer: waits end early then, and nothing new is begun.
    /// What was closed is opened and what was lowered is restored all the same.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Does work and waits for it no longer than `limit`. `false` where it was not done by then: it
    /// goes on by itself, and nobody waits for it any more.
    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool;
}

/// A clock that moves when it is told to, for tests: every pause is over at once, and work that
/// pauses longer than its limit counts as cut off.
#[derive(Clone, Default)]
pub struct ManualClock {
    now: Arc<Mutex<Duration>>,
}

impl ManualClock {
    /// Moves on.
    pub fn advance(&self, by: Duration) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
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

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({:?})", self.now())
    }
}
