//! The memory that the program has on its devices: what can sleep, and what stays.

pub(crate) mod allocations;
pub(crate) mod chunks;
pub(crate) mod context;
pub(crate) mod live_contexts;
pub(crate) mod unmanaged;
pub(crate) mod virtual_memory;
pub(crate) mod virtual_pool;
