//! The pool's lock, and how threads wait under it: for a turn's end, and for jobs.
//!
//! The lock refuses in a forked child, whose parent's threads may hold it for ever. And it refuses once
//! a thread has panicked in the middle of a change: what is under it may be half-written then.
//!
//! Only the part that synchronises is here, so that a model checker can try every order in which
//! threads can come. What a turn does to memory is in `turn.rs`.
#![allow(unreachable_pub, reason = "public for the models, which compile this file, too")]

use std::sync::OnceLock;

use lowtide_device::process::Generation;
use lowtide_types::Phase;

use crate::error::TurnStep;
use crate::lock::inside::check_may_wait;
use crate::lock::limit::{Limit, Progress};
use crate::lock::{Condvar, Mutex, MutexGuard, lock, wait, wait_a_little};
use crate::state::tags::{Scope, Tags, Turning};
use crate::{Error, Result};

/// A lock around a pool's state, with what threads wait for.
pub struct Monitor<T> {
    state: Mutex<T>,
    /// A job or a turn has ended.
    changed: Condvar,
    /// The process that the pool belongs to.
    made_in: Generation,
    /// The change in whose middle a thread panicked.
    broken: OnceLock<&'static str>,
}

/// A change that takes several steps, some of them without the lock. A panic in the middle of it breaks
/// the monitor.
pub struct Change<'a, T: AsMut<Tags>> {
    monitor: &'a Monitor<T>,
    what: &'static str,
    /// Set where this is part of what another panic does on its way out.
    is_unwinding: bool,
}

impl<T: AsMut<Tags>> Drop for Change<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.is_unwinding {
            self.monitor.broken.get_or_init(|| self.what);
            // Threads that wait for the end of this change would wait for ever.
            self.monitor.notify();
        }
    }
}

impl<T: AsMut<Tags>> Monitor<T> {
    /// Puts a state under the lock.
    pub fn new(state: T) -> Monitor<T> {
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Monitor { state, changed, made_in: Generation::current(), broken: OnceLock::new() }
    }

    /// Locks the state and returns it.
    ///
    /// # Errors
    /// [`Error::Broken`] after a panic; that of a forked child.
    // Every hit passes here, so only what a hit needs is compiled into it.
    #[inline]
    pub fn lock(&self) -> Result<MutexGuard<'_, T>> {
        if self.made_in.is_current()
            && let Ok(state) = self.state.lock()
            && self.broken.get().is_none()
        {
            return Ok(state);
        }
        Err(self.refusal())
    }

    #[cold]
    fn refusal(&self) -> Error {
        match self.made_in.check() {
            Ok(()) => {
                let what = self.broken.get().copied();
                Error::Broken { during: what.unwrap_or("a change under its lock") }
            }
            Err(forked) => forked.into(),
        }
    }

    /// Locks the state even after a panic, when nothing in it can be relied on; `None` in a forked child.
    pub fn lock_as_it_is(&self) -> Option<MutexGuard<'_, T>> {
        self.made_in.is_current().then(|| lock(&self.state))
    }

    /// Returns whether the state belongs to this process.
    pub fn is_own(&self) -> bool {
        self.made_in.is_current()
    }

    /// Begins a change that takes several steps. A panic before the result is dropped breaks the monitor.
    pub fn change(&self, what: &'static str) -> Change<'_, T> {
        Change { monitor: self, what, is_unwinding: std::thread::panicking() }
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
            check_may_wait(self)?;
            if limit.is_none() {
                drop(wait(&self.changed, state));
                // Not the same lock: a thread may have panicked meanwhile, or this be a forked child.
                state = self.lock()?;
                continue;
            }
            drop(state);
            limit.ask(TurnStep::Waiting, Progress::default)?;
            state = self.lock()?;
            // It may have come to pass meanwhile, and nobody would notify for it again.
            if !ready((*state).as_mut()) {
                drop(wait_a_little(&self.state, &self.changed, state));
                state = self.lock()?;
            }
        }
        Ok(state)
    }

    /// Begins a turn for the tags of a scope that are in this phase; `None` where there are none.
    /// Waits for a turn or a step that is under way, and then for jobs on the memory of these tags.
    ///
    /// # Errors
    /// Where a tag is not the pool's, or where the limit says to stop; then no turn has begun.
    pub fn begin_turn(
        &self,
        scope: Scope<'_>,
        from: Phase,
        limit: Limit<'_>,
    ) -> Result<Option<(MutexGuard<'_, T>, Vec<Turning>)>> {
        let mut state = self.wait_for_backups(limit)?;
        let turns = (*state).as_mut().begin_turn(scope, from)?;
        if turns.is_empty() {
            return Ok(None);
        }
        match self.wait_until(state, limit, |tags| !tags.have_jobs(&turns)) {
            Ok(state) => Ok(Some((state, turns))),
            Err(stopped) => {
                if let Some(state) = self.lock_as_it_is() {
                    self.end_turn(state, &turns);
                }
                Err(stopped)
            }
        }
    }

    // Waits until no turn and no step has the backups. No step begins meanwhile, so that a thread that
    // takes one after the other keeps nobody waiting.
    fn wait_for_backups(&self, limit: Limit<'_>) -> Result<MutexGuard<'_, T>> {
        let mut state = self.lock()?;
        (*state).as_mut().begin_waiting();
        let waited = self.wait_until(state, limit, |tags| !tags.has_lent_backups());
        match waited {
            Ok(mut state) => {
                (*state).as_mut().end_waiting();
                Ok(state)
            }
            Err(stopped) => {
                if let Some(mut state) = self.lock_as_it_is() {
                    (*state).as_mut().end_waiting();
                }
                Err(stopped)
            }
        }
    }

    /// Begins a step of backups ahead of time; `None` where a turn or another step is under way, or
    /// where a thread waits for its turn. Waits for nothing.
    ///
    /// # Errors
    /// As [`Monitor::lock`].
    pub fn begin_step(&self) -> Result<Option<MutexGuard<'_, T>>> {
        let mut state = self.lock()?;
        let begins = (*state).as_mut().begin_step();
        Ok(begins.then_some(state))
    }

    /// Ends a step.
    pub fn end_step(&self, mut state: MutexGuard<'_, T>) {
        (*state).as_mut().end_step();
        drop(state);
        self.notify();
    }

    /// Ends a turn and lets others have theirs.
    pub fn end_turn(&self, mut state: MutexGuard<'_, T>, turns: &[Turning]) {
        (*state).as_mut().end_turn(turns);
        drop(state);
        self.notify();
    }
}
