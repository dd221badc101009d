//! The pool's lock, waiting under it, and limits that stop a wait.

pub(crate) mod inside;
pub(crate) mod limit;
pub(crate) mod monitor;
pub(crate) mod sync;
