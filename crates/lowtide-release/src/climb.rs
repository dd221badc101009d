//! A climb as its rungs and hooks see it: by which clock it waits, whether it should go on, and which
//! releaser it belongs to.
//!
//! It is an argument, and so is everything that follows from it. A rung or a hook that asks for a
//! release passes its climb on ([`Request::within`](crate::Request::within)), on whatever thread it
//! runs by then. Code that has no argument, such as a `Drop`, is recognised by its thread, if it is a
//! thread that the climb runs on.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
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
    /// The threads that run a part of it.
    threads: Threads,
}

type Threads = Arc<Mutex<Vec<ThreadId>>>;

/// Keeps a climb under way, on this thread. Dropping it ends the climb.
pub(crate) struct UnderWay {
    _alive: Arc<()>,
    _here: Here,
}

/// A thread that runs a part of a climb. Dropping it says that the part has ended.
struct Here(Threads);

impl Here {
    fn new(threads: &Threads) -> Here {
        lock(threads).push(thread::current().id());
        Here(Arc::clone(threads))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let (me, mut threads) = (thread::current().id(), lock(&self.0));
        // One thread may run a part within a part.
        if let Some(at) = threads.iter().rposition(|id| *id == me) {
            threads.remove(at);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Climb {
    /// Begins a climb of a releaser on this thread, asked for within another climb or not.
    pub(crate) fn begin(
        clock: Arc<dyn Clock>,
        go_on: Option<GoOn>,
        releaser: &Arc<()>,
        outer: Option<&Climb>,
    ) -> (Climb, UnderWay) {
        let (alive, threads) = (Arc::new(()), Threads::default());
        let climb = Climb {
            clock,
            go_on,
            releaser: Arc::clone(releaser),
            alive: Arc::downgrade(&alive),
            outer: outer.cloned().map(Arc::new),
            threads: Arc::clone(&threads),
        };
        (climb, UnderWay { _alive: alive, _here: Here::new(&threads) })
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

    /// Returns whether the climb has ended. A rung that exceeded its limit and was left behind begins
    /// nothing new then: work may be running again.
    pub fn is_over(&self) -> bool {
        self.alive.strong_count() == 0
    }

    /// Whether the caller of this release wants it to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.go_on.as_ref().is_some_and(|go_on| !go_on())
    }

    /// Whether this climb, or one that it was asked for in, is a climb of this releaser and has not
    /// ended: a release of that releaser would wait for itself.
    pub(crate) fn is_climb_of(&self, releaser: &Arc<()>) -> bool {
        let is_own = Arc::ptr_eq(&self.releaser, releaser) && !self.is_over();
        is_own || self.outer.as_ref().is_some_and(|outer| outer.is_climb_of(releaser))
    }

    /// Whether this thread runs a part of the climb.
    pub(crate) fn runs_here(&self) -> bool {
        lock(&self.threads).contains(&thread::current().id())
    }

    /// Runs a part of the climb within a time limit, on a thread of its own where the clock has one.
    /// Returns how it ended, or `None` if it exceeded the limit and was left behind.
    pub(crate) fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        part: impl FnOnce() -> T + Send + 'static,
    ) -> Option<thread::Result<T>> {
        let ended: Arc<Mutex<Option<thread::Result<T>>>> = Arc::default();
        let (result, threads) = (Arc::clone(&ended), Arc::clone(&self.threads));
        let work = move || {
            let here = Here::new(&threads);
            let outcome = catch_unwind(AssertUnwindSafe(part));
            drop(here);
            *lock(&result) = Some(outcome);
        };
        let in_time = self.clock.within(limit, Box::new(work));
        let ended = lock(&ended).take();
        ended.filter(|_| in_time)
    }
}

impl fmt::Debug for Climb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_over() { "over" } else { "under way" };
        write!(f, "Climb({state})")
    }
}
