//! Locks for the gate and the idle policy, in one place, so that a model checker can drive them.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
