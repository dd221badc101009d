//! Blocks over reservations and chunks of a device: chunks move, addresses don't.
//!
//! A [`Pool`] hands out blocks. Each has a [`Tag`], and a tag has a [`SleepPolicy`]: in a sleep its
//! content goes to the host and comes back, or is lost, or stays. Addresses stay in any case.

mod arena;
mod backup;
mod bins;
mod block;
mod blocks;
mod books;
mod carry;
mod feed;
mod fence;
mod handles;
mod memory;
mod miss;
mod piece;
mod policy;
mod pool;
mod pressure;
mod record;
pub mod replay;
mod restoring;
mod saving;
mod shelf;
mod sleep;
mod snapshot;
mod streams;
mod tags;
pub mod trace;
mod turn;
mod wake;

pub use block::Block;
pub use books::Counts;
pub use fence::{Fence, StreamFence};
pub use policy::Policy;
pub use pool::Pool;
pub use pressure::{Answer, Pressure, Subscription};
pub use record::Recording;
pub use sleep::SleepReport;
pub use snapshot::{Snapshot, TagSnapshot};
pub use tags::{Phase, Scope, SleepPolicy, Tag};
pub use wake::WakeReport;

use lowtide_device::{Address, Bytes, DeviceId};

/// A stream's identity, never used twice. On CUDA what `cuStreamGetId` says, because handles are
/// recycled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

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
    /// A tag of another pool.
    #[error("{tag:?} is no tag of this pool; make it with `Pool::tag`")]
    UnknownTag {
        /// The tag.
        tag: Tag,
    },
    /// A tag is known with another policy.
    #[error("tag {name:?} is known as {known:?}, not {wanted:?}; use another name")]
    OtherPolicy {
        /// Its name.
        name: String,
        /// What it was made with.
        known: SleepPolicy,
        /// What was asked for.
        wanted: SleepPolicy,
    },
    /// Each tag takes address space.
    #[error("a pool has at most {most} tags")]
    TooManyTags {
        /// That many.
        most: usize,
    },
    /// The tag is asleep.
    #[error("tag {tag:?} is asleep; wake it, or set `wake_on_alloc` in the policy")]
    Asleep {
        /// Its name.
        tag: String,
    },
    /// The pool's own limit for backups.
    #[error(
        "backups would take {needed} of host memory, the policy's limit is {most}; \
         raise `backup_most`, or let a tag be discarded"
    )]
    BackupLimit {
        /// What all backups would take.
        needed: Bytes,
        /// The limit.
        most: Bytes,
    },
    /// The device has no room to wake.
    #[error(
        "no room to wake: {needed} needed on {device}, {free} free; held by {holders}. \
         Everything is still asleep: free some and try again"
    )]
    NoRoom {
        /// The device.
        device: DeviceId,
        /// What the wake takes.
        needed: Bytes,
        /// What the device says is free.
        free: Bytes,
        /// Who has the rest.
        holders: String,
    },
    /// A page is not what it was when it was saved.
    #[error(
        "page {page:?} of block {block:?} (tag {tag:?}) came back wrong, twice; its backup is kept \
         and everything is still asleep"
    )]
    Corrupt {
        /// The block's tag.
        tag: String,
        /// The block on that page.
        block: Address,
        /// The page.
        page: Address,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] lowtide_device::Error),
}

/// The result of pool work.
pub type Result<T, E = Error> = std::result::Result<T, E>;
