//! Blocks over reservations and chunks of a device: chunks move, addresses don't.

mod arena;
mod bins;
mod blocks;
mod fence;
mod miss;
mod policy;
mod pool;
pub mod replay;
pub mod trace;

pub use fence::Fence;
pub use policy::Policy;
pub use pool::{Counts, Pool, TagCounts};

use lowtide_device::{Address, Bytes};

/// A stream's identity, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// A name for blocks, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub u16);

/// What can go wrong in a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No live block begins there.
    #[error(
        "no live block begins at {address:?}; free each block once, by the address it was given at"
    )]
    UnknownBlock {
        /// The address.
        address: Address,
    },
    /// The arena has no stretch of addresses that long.
    #[error("no addresses left for a block of {size}")]
    NoAddresses {
        /// The block's size.
        size: Bytes,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] lowtide_device::Error),
}

/// The result of pool work.
pub type Result<T, E = Error> = std::result::Result<T, E>;
