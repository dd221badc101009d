//! The locks and atomics of the gate and the idle policy, imported from this one file: `lowtide-models`
//! has another, with those of a model checker. And how every lock of this crate is taken after a panic.

use std::sync::{LockResult, PoisonError};

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Whether threads are those of a model: they share one thread of the machine and its thread-locals.
pub(crate) const IS_MODEL: bool = false;

/// Returns the guard of a lock, also after a thread panicked with it.
///
/// Nothing in this crate is half-written then, for two reasons that every user of a lock keeps to. No
/// code of a caller runs with a lock held: no clock, gauge, rung name, `Drop` or log. And a change that
/// has several steps checks first and writes afterwards.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
