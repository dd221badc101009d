//! Forks: how gates, releasers and owners notice that a forked child inherited them.
//!
//! A child has its parent's memory and none of its threads. A lock that one of them held stays locked in
//! the child for ever, and what is under it may be half-written. So everything with a lock remembers the
//! process that made it, and looks before it locks.

use lowtide_device::process::Generation;

use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// The process that something was made in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkGuard(Generation);

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard(Generation::current())
    }
}

impl ForkGuard {
    /// Returns whether this is a forked child of the process that made it. Costs one load, and takes no
    /// lock.
    #[inline]
    pub(crate) fn is_inherited(self) -> bool {
        !self.0.is_current()
    }
}

/// A lock of one process, which a forked child leaves alone.
#[derive(Debug, Default)]
pub(crate) struct ProcessMutex<T> {
    value: Mutex<T>,
    made_in: ForkGuard,
}

impl<T> ProcessMutex<T> {
    pub(crate) fn new(value: T) -> ProcessMutex<T> {
        ProcessMutex { value: Mutex::new(value), made_in: ForkGuard::default() }
    }

    /// Locks it, also after a panic; `None` in a forked child.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        (!self.is_inherited()).then(|| unpoisoned(self.value.lock()))
    }

    /// Returns whether a forked child inherited it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.made_in.is_inherited()
    }
}

impl<T> ProcessMutex<Vec<T>> {
    /// Adds to a list. Does nothing in a forked child.
    pub(crate) fn push(&self, one: T) {
        if let Some(mut list) = self.lock() {
            list.push(one);
        }
    }
}

/// Says why something that a forked child inherited refuses.
pub(crate) fn refusal(what: &str) -> String {
    format!("this {what} belongs to the parent process: make a new one after the fork")
}
