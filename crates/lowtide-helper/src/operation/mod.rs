//! Suspending and resuming: one operation at a time on a device, a journal before each step.

pub(crate) mod journal;
pub(crate) mod lock_table;
pub(crate) mod machine_locks;
pub(crate) mod recovery;
mod resume;
pub(crate) mod service;
mod suspend;
pub mod trial;
