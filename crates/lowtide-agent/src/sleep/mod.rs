//! Going to sleep and waking, suspending and resuming, and the caches that go before.

pub(crate) mod agent;
mod suspension;
mod torch_cache;

pub(crate) use suspension::{Way, begin_exit, is_exiting};
