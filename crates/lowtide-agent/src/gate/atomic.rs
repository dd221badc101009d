//! The atomics of the protocol; its model brings others.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
