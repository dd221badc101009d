//! The memory that the program has on its devices: what can sleep, and what stays.

pub(crate) mod allocations;
pub(crate) mod contexts;
pub(crate) mod primaries;
pub(crate) mod unmanaged;
pub(crate) mod virtual_memory;
