//! Locks, and what a panic under one means.
//!
//! No driver and no code of a caller is called under a lock of this crate, so a panic there is a bug
//! of ours. Almost everything under our locks is changed in one step (a number, a cell, one entry of a
//! list) and is whole at any time. The table of mappings is not; see `reservation.rs`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks data that is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the condition variable is notified, for data that is whole at any time.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
