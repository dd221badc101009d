//! The pool's lock, and how threads wait under it: for a turn's end, and for jobs.
//!
//! Only the part that synchronises is here, so that `tests/loom.rs` can try every order in which
//! threads can come. What a turn does to memory is in `turn.rs`.
#![cfg_attr(
    not(feature = "loom"),
    allow(unreachable_pub, reason = "public for the models in tests/loom.rs alone")
)]
#![cfg_attr(
    feature = "loom",
    allow(clippy::missing_errors_doc, clippy::missing_panics_doc, clippy::new_without_default)
)]

use lowtide_types::Phase;

use crate::Result;
use crate::limit::{Limit, Progress};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait, wait_a_little};
use crate::tag::Scope;
use crate::tags::{Tags, Turning};
use crate::turn_step::TurnStep;

/// A lock around a pool's state, with what threads wait for.
pub struct Monitor<T> {
    state: Mutex<T>,
    /// A job or a turn has ended.
    changed: Condvar,
}

impl<T: AsMut<Tags>> Monitor<T> {
    /// Puts a state under the lock.
    pub fn new(state: T) -> Monitor<T> {
        Monitor { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Locks the state and returns it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.state)
    }

    /// Wakes every thread that waits. Called after a job or a turn has ended.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `ready`, which is asked again whenever a job or a turn has ended. The limit is
    /// asked without the lock.
    pub fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, T>,
        limit: Limit<'_>,
        ready: impl Fn(&mut Tags) -> bool,
    ) -> Result<MutexGuard<'a, T>> {
        while !ready((*state).as_mut()) {
            if limit.is_none() {
                state = wait(&self.changed, state);
                continue;
            }
            drop(state);
            limit.ask(TurnStep::Waiting, Progress::default)?;
            state = self.lock();
            // It may have come to pass meanwhile, and nobody would notify for it again.
            if !ready((*state).as_mut()) {
                state = wait_a_little(&self.state, &self.changed, state);
            }
        }
        Ok(state)
    }

    /// Begins a turn for the tags of a scope that are in this phase; `None` where there are none.
    /// Waits for a turn that is under way, and then for jobs on the memory of these tags.
    ///
    /// # Errors
    /// Where a tag is not the pool's, or where the limit says to stop; then no turn has begun.
    pub fn begin_turn(
        &self,
        scope: Scope<'_>,
        from: Phase,
        limit: Limit<'_>,
    ) -> Result<Option<(MutexGuard<'_, T>, Vec<Turning>)>> {
        let mut state = self.wait_until(self.lock(), limit, |tags| !tags.has_turn())?;
        let turns = (*state).as_mut().begin_turn(scope, from)?;
        if turns.is_empty() {
            return Ok(None);
        }
        match self.wait_until(state, limit, |tags| !tags.have_jobs(&turns)) {
            Ok(state) => Ok(Some((state, turns))),
            Err(stopped) => {
                self.end_turn(self.lock(), &turns);
                Err(stopped)
            }
        }
    }

    /// Ends a turn and lets others have theirs.
    pub fn end_turn(&self, mut state: MutexGuard<'_, T>, turns: &[Turning]) {
        (*state).as_mut().end_turn(turns);
        drop(state);
        self.notify();
    }
}
