//! Suspending and resuming: one operation at a time on a device, a journal before each step.

pub(crate) mod admission;
pub(crate) mod journal;
pub(crate) mod lock_table;
pub(crate) mod machine_locks;
pub(crate) mod recovery;
pub(crate) mod service;
pub mod trial;
