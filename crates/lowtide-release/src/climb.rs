//! A climb as its rungs and hooks see it: by which clock it waits, whether it should go on, and which
//! releaser it belongs to.
//!
//! It is an argument, and so is everything that follows from it. A rung or a hook that asks for a
//! release passes its climb on ([`Request::within`](crate::Request::within)), on whatever thread it
//! runs by then.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::clock::Clock;

/// Asked at every safe point of a release: whether it should go on.
pub type GoOn = Arc<dyn Fn() -> bool + Send + Sync>;

/// One climb of a ladder, as its rungs and hooks see it. Cheap to clone.
#[derive(Clone)]
pub struct Climb {
    clock: Arc<dyn Clock>,
    go_on: Option<GoOn>,
    /// The releaser that climbs. Its address is its identity.
    releaser: Arc<()>,
    /// Upgrades while the climb is under way.
    alive: Weak<()>,
    /// The climb that this one was asked for in.
    outer: Option<Arc<Climb>>,
}

/// Keeps a climb under way. Dropping it ends the climb.
pub(crate) struct Alive(#[expect(dead_code, reason = "its count is what matters")] Arc<()>);

impl Climb {
    /// Begins a climb of a releaser, asked for within another climb or not.
    pub(crate) fn begin(
        clock: Arc<dyn Clock>,
        go_on: Option<GoOn>,
        releaser: &Arc<()>,
        outer: Option<&Climb>,
    ) -> (Climb, Alive) {
        let alive = Arc::new(());
        let climb = Climb {
            clock,
            go_on,
            releaser: Arc::clone(releaser),
            alive: Arc::downgrade(&alive),
            outer: outer.cloned().map(Arc::new),
        };
        (climb, Alive(alive))
    }

    /// Returns the clock of this climb. A rung that waits, waits by it.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Returns whether the climb should go on. Rungs and hooks that take long ask at every safe point
    /// and end early, with what they have done so far, when it says no.
    pub fn go_on(&self) -> bool {
        !self.is_stopped() && !self.clock.is_interrupted()
    }

    /// Whether the caller of this release wants it to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.go_on.as_ref().is_some_and(|go_on| !go_on())
    }

    /// Whether this climb, or one that it was asked for in, is a climb of this releaser and has not
    /// ended: a release of that releaser would wait for itself.
    pub(crate) fn is_climb_of(&self, releaser: &Arc<()>) -> bool {
        let is_own = Arc::ptr_eq(&self.releaser, releaser) && self.alive.strong_count() > 0;
        is_own || self.outer.as_ref().is_some_and(|outer| outer.is_climb_of(releaser))
    }

    /// Runs a part of the climb within a time limit, on a thread of its own where the clock has one.
    /// Returns how it ended, or `None` if it exceeded the limit and was left behind.
    pub(crate) fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        part: impl FnOnce() -> T + Send + 'static,
    ) -> Option<thread::Result<T>> {
        let ended: Arc<Mutex<Option<thread::Result<T>>>> = Arc::default();
        let result = Arc::clone(&ended);
        let work = move || {
            let outcome = catch_unwind(AssertUnwindSafe(part));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let in_time = self.clock.within(limit, Box::new(work));
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended.filter(|_| in_time)
    }
}

impl fmt::Debug for Climb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.alive.strong_count() > 0 { "under way" } else { "over" };
        write!(f, "Climb({state})")
    }
}
