//! The numbers that a release is judged by, and everything that it knows of the memory of a device.

mod allocator;
pub mod floor;
mod gauge;
mod inventory;

pub use allocator::{Allocator, AllocatorCounts};
pub use gauge::Gauge;
pub(crate) use gauge::read_settled;
pub use inventory::Inventory;
pub(crate) use inventory::{Activity, Doing};
