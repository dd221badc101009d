//! The errors of a pool: each variant carries facts, and its message begins with the conclusion.

use lowtide_device::{Address, Bytes, DeviceId, DeviceInfo};
use lowtide_types::{SleepPolicy, words};

use crate::state::tags::Tag;

/// The reasons why a pool refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No live block begins at this address.
    #[error(
        "no live block begins at {address:?}; free each block once, by the address it was given at"
    )]
    UnknownBlock {
        /// The address that was passed in.
        address: Address,
    },
    /// A read, a write or a fill would leave its block.
    #[error(
        "bytes {}..{} are not in the block, which has {}",
        offset.0,
        offset.0.saturating_add(length.0),
        size.0
    )]
    OutsideBlock {
        /// The start of the access, counted from the start of the block.
        offset: Bytes,
        /// The length of the access.
        length: Bytes,
        /// The size of the block.
        size: Bytes,
    },
    /// The tag's address space has no gap of this size.
    #[error("no addresses left for a block of {size}")]
    NoAddresses {
        /// The size of the block.
        size: Bytes,
    },
    /// The block is larger than the whole memory of the device, and than the tag's address space.
    #[error("a block of {size} is larger than all memory of {device}, {total}; ask for less")]
    LargerThanDevice {
        /// The device that the block was for.
        device: DeviceId,
        /// The size of the block.
        size: Bytes,
        /// The whole memory of the device.
        total: Bytes,
    },
    /// The tag belongs to another pool.
    #[error("{tag:?} is not a tag of this pool; make one with `Pool::tag`")]
    UnknownTag {
        /// The tag that was passed in.
        tag: Tag,
    },
    /// A tag of this name exists with another policy.
    #[error("tag {name:?} exists with policy {known:?}, not {wanted:?}; use another name")]
    OtherPolicy {
        /// The name of the tag.
        name: String,
        /// The policy that the tag was made with.
        known: SleepPolicy,
        /// The policy that was asked for now.
        wanted: SleepPolicy,
    },
    /// The tag sleeps, and its content is where its policy had it put.
    #[error("tag {name:?} is asleep with policy {known:?}: wake it before it becomes {wanted:?}")]
    PolicyWhileAsleep {
        /// The name of the tag.
        name: String,
        /// The policy that the tag sleeps with.
        known: SleepPolicy,
        /// The policy that was asked for now.
        wanted: SleepPolicy,
    },
    /// The pool has as many tags as it can have; each takes address space.
    #[error("no more tags: a pool has at most {most}")]
    TooManyTags {
        /// The most tags that a pool can have.
        most: usize,
    },
    /// The tag's memory is not on the device.
    #[error(
        "tag {tag:?} is asleep; wake it first (an allocation does, with `wake_on_alloc` in the policy)"
    )]
    Asleep {
        /// The name of the tag.
        tag: String,
    },
    /// The device has no memory for a block, even after every free chunk was moved and every callback was
    /// asked.
    #[error("no room for a block of {requested}, with {cached} cached in the pool: {source}")]
    OutOfMemory {
        /// The size of the block.
        requested: Bytes,
        /// Memory of the pool that is in no block, and that the block cannot have or that is too little.
        cached: Bytes,
        /// The device's own refusal: of the chunk that it was asked for.
        source: lowtide_device::Error,
    },
    /// Backups would exceed the pool's own limit, [`crate::Policy::backup_most`].
    #[error(
        "backups would take {needed} of host memory, more than the policy's {most}; \
         raise `backup_most`, or let a tag be discarded"
    )]
    BackupLimit {
        /// The host memory that all backups would take.
        needed: Bytes,
        /// The limit that the policy sets.
        most: Bytes,
    },
    /// The device has too little free memory for a wake. Everything is still asleep.
    #[error(
        "no room to wake: {needed} needed on {device}, {free} free; used by {holders}. \
         Everything is still asleep: free some memory and try again"
    )]
    NoRoom {
        /// The device that has too little memory.
        device: DeviceId,
        /// The device memory that the wake needs.
        needed: Bytes,
        /// The free memory that the device reports.
        free: Bytes,
        /// The processes that use the rest.
        holders: String,
    },
    /// A page or its backup was written again and again while a sleep saved it. Its tag is awake.
    #[error(
        "page {page:?} of tag {tag:?} keeps changing: each of {takes} copies differed from it; the tag \
         is awake with its data. Stop the work that writes to it and try again"
    )]
    KeepsChanging {
        /// The name of the tag.
        tag: String,
        /// The address of the page.
        page: Address,
        /// The number of times that the page was copied.
        takes: u32,
    },
    /// Pages do not match the digests that were taken when they were saved. Everything is still asleep.
    #[error("{}", corrupt(tag, *block, *page, others))]
    Corrupt {
        /// The name of the block's tag.
        tag: String,
        /// The address of the block that the page belongs to.
        block: Address,
        /// The address of the page.
        page: Address,
        /// The addresses of other pages that do not match.
        others: Vec<Address>,
    },
    /// The block's backup was bad when its tag was woken with [`crate::Pool::wake_losing`], and nothing
    /// has written all of the block since.
    #[error(
        "the content of block {block:?} (tag {tag:?}) is lost: its backup was bad; fill it, or write \
         all of it at once, before it is read"
    )]
    Lost {
        /// The name of the block's tag.
        tag: String,
        /// The address of the block.
        block: Address,
    },
    /// The caller's [`crate::Limit`] said to stop. Everything is as it was before the call.
    #[error("{}", stopped(*step, *done, *total))]
    Stopped {
        /// The step at which the operation stopped.
        step: TurnStep,
        /// The bytes for which this step was complete.
        done: Bytes,
        /// The bytes that this step was for; zero while waiting.
        total: Bytes,
    },
    /// The pool's own fence made this call, which would wait for that fence. Nothing has changed.
    #[error(
        "the fence of this pool made this call, which would ask the fence again or wait for it; a fence \
         only asks its streams"
    )]
    InsideFence,
    /// A limit of this pool made this call, which would wait: perhaps for the sleep, wake or allocation
    /// that asks the limit. Nothing has changed.
    #[error(
        "the limit of a sleep, a wake or an allocation of this pool made this call, which would wait for \
         it; call the pool when that operation has ended"
    )]
    InsideLimit,
    /// A thread panicked in the middle of a change, so the pool's tables may be half-written.
    #[error(
        "the pool is broken: a thread panicked during {during}. Drop the pool and its blocks, which \
         gives their memory back, and make a new one"
    )]
    Broken {
        /// The change that was not completed.
        during: &'static str,
    },
    /// The device refused a call. In a forked child: the pool, its blocks and its
    /// device belong to the parent ([`lowtide_device::Error::Forked`]).
    #[error(transparent)]
    Device(#[from] lowtide_device::Error),
}

impl Error {
    /// Returns whether the device has no memory for this: its driver said so.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::OutOfMemory { .. } => true,
            Error::Device(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    // Address space can be had for more than the memory of a device. Where not even that is enough,
    // the reader is told of the memory.
    pub(crate) fn no_addresses(size: Bytes, device: &DeviceInfo) -> Error {
        let DeviceInfo { id, total, .. } = *device;
        if size > total {
            Error::LargerThanDevice { device: id, size, total }
        } else {
            Error::NoAddresses { size }
        }
    }
}

fn stopped(step: TurnStep, done: Bytes, total: Bytes) -> String {
    let progress =
        if total > Bytes::ZERO { format!(", {done} of {total} done") } else { String::new() };
    format!("stopped by its limit while {step}{progress}; everything is as it was before")
}

fn corrupt(tag: &str, block: Address, page: Address, others: &[Address]) -> String {
    let more = match others.len() {
        0 => String::new(),
        1 => ", and so did 1 other page".to_owned(),
        count => format!(", and so did {count} other pages"),
    };
    format!(
        "page {page:?} of block {block:?} (tag {tag:?}) came back wrong, twice{more}; the backup is \
         kept and everything is still asleep. `wake_losing` wakes everything but the blocks on such pages"
    )
}

/// The result of a pool's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

words! {
    /// A step of a sleep, a wake or an allocation at which a [`Limit`](crate::Limit) can stop it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum TurnStep {
        /// Waits until another sleep or wake of the same tags, or driver calls of other threads on their
        /// memory, have ended.
        Waiting = "waiting for other work on the same memory",
        /// Computes digests and takes host memory for backups.
        Planning = "planning",
        /// Copies pages to the host.
        CopyingOut = "copying to the host",
        /// Takes memory away from its addresses.
        Unmapping = "unmapping",
        /// Creates memory and puts it under its addresses.
        Mapping = "mapping",
        /// Copies pages back to the device.
        CopyingIn = "copying to the device",
        /// Compares digests with those of the backups.
        Checking = "checking digests",
    }
}
