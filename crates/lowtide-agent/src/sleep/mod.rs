//! Going to sleep and waking, suspending and resuming, and what is in the way of it.

pub(crate) mod agent;
pub(crate) mod driver_pools;
pub(crate) mod obstacles;
pub(crate) mod surroundings;
pub(crate) mod suspend;
pub(crate) mod torch_cache;
