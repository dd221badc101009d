//! The safe layer that callers hold: it checks ranges, keeps the tables, and keeps alive what submitted
//! work uses. Underneath is a [`Backend`](crate::Backend).

pub(crate) mod chunk;
pub(crate) mod device;
pub(crate) mod host_memory;
pub(crate) mod host_pages;
mod host_region;
mod in_flight;
pub(crate) mod mapping_table;
pub(crate) mod reservation;
mod shared;
mod staging;
pub(crate) mod stream;
