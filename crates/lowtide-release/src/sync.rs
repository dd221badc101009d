//! The locks and atomics of the gate and the idle policy, imported from this one file, so that a model
//! checker can take their place; and how every lock of this crate is taken after a panic.

use std::sync::{LockResult, PoisonError};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Returns the guard of a lock, also after a thread panicked with it.
///
/// Nothing in this crate is half-written then, for two reasons that every user of a lock keeps to. No
/// code of a caller runs with a lock held: no clock, gauge, rung name, `Drop` or log. And a change that
/// has several steps checks first and writes afterwards.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
