//! Releases for Python: the ladder of `lowtide`, climbed with rungs that Python provides.
//!
//! Order, time limits, isolation, readings, verdicts and receipts are those of every other release.

pub(crate) mod gate;
pub(crate) mod idle;
pub(crate) mod pauses;
pub(crate) mod releaser;
pub(crate) mod stages;
