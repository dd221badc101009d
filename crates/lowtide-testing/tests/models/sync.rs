//! The locks of a model checker, with the names of `lock` in `lowtide-pool` and of `sync.rs` in `lowtide-release`.

use std::sync::{LockResult, PoisonError};

pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) const IS_MODEL: bool = true;

pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    unpoisoned(condvar.wait(guard))
}

/// A model has no time: other threads run meanwhile.
pub(crate) fn wait_a_little<'a, T>(
    mutex: &'a Mutex<T>,
    _condvar: &Condvar,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    drop(guard);
    loom::thread::yield_now();
    lock(mutex)
}
