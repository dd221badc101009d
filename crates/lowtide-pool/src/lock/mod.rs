//! The pool's lock, waiting under it, and limits that stop a wait.
//!
//! Turns and the queue between copying threads import their locks from this file: the models of
//! `lowtide-testing` have another, with the locks of a model checker.

pub(crate) mod inside;
pub(crate) mod limit;
pub(crate) mod monitor;

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicUsize};

use std::sync::PoisonError;

/// Locks data that a panic cannot leave half-written, or that nobody uses after one: lists and cells
/// that are changed in one step, and the queues of a copy, which ends with the panic. The tables of a
/// pool are behind [`crate::lock::monitor::Monitor`], which refuses after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the condition variable is notified.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the condition variable is notified, but not for long: the caller looks again.
pub(crate) fn wait_a_little<'a, T>(
    _mutex: &'a Mutex<T>,
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    /// The delay with which a thread that waits may notice its limit.
    const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(2);
    condvar.wait_timeout(guard, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0
}
