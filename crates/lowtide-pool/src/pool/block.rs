//! A block that frees itself, and whose bytes can be read and written from the host.

use std::panic::Location;

use lowtide_device::{Address, Bytes, Reservation, Result as DeviceResult};
use lowtide_types::Phase;

use crate::lock::inside::check_outside_fence;
use crate::lock::limit::Limit;
use crate::lock::lock;
use crate::pool::Pool;
use crate::pool::fence::StreamId;
use crate::pool::host_access::HostAccess;
use crate::state::tags::{Tag, Tags};
use crate::{Error, Result};

impl Pool {
    /// Allocates a block under the default tag, on stream zero. It is freed when it is dropped.
    ///
    /// A block of zero bytes has an address of its own, too, and no content. It takes 128 bytes of
    /// the pool's memory, the least that a block takes; an empty pool takes a chunk from the device
    /// for it.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[track_caller]
    pub fn block(&self, size: Bytes) -> Result<Block> {
        self.block_on(size, StreamId::default(), Tag::default())
    }

    /// Allocates a block under `tag`, on stream zero. It is freed when it is dropped.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[track_caller]
    pub fn block_tagged(&self, size: Bytes, tag: Tag) -> Result<Block> {
        self.block_on(size, StreamId::default(), tag)
    }

    /// Allocates a block under `tag`, on `stream`. It is freed when it is dropped.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[track_caller]
    pub fn block_on(&self, size: Bytes, stream: StreamId, tag: Tag) -> Result<Block> {
        let address = self.alloc(size, stream, tag)?;
        lock(&self.shared.allocated_at).insert(address.0, Location::caller());
        Ok(Block { pool: self.clone(), address, size, stream, is_left: false })
    }
}

/// A block of a pool. It is freed on its stream when it is dropped.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// use lowtide_pool::{Pool, Scope, SleepPolicy};
/// # fn main() -> lowtide_pool::Result<()> {
/// # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let pool = Pool::new(&device)?;
/// let weights = pool.tag("weights", SleepPolicy::Offload)?;
/// let block = pool.block_tagged(Bytes::mib(1), weights)?;
/// block.fill(7)?;
/// block.write(Bytes(100), &[1, 2, 3])?;
///
/// pool.sleep(Scope::Tags(&[weights]))?;
/// pool.wake(Scope::Tags(&[weights]))?;
///
/// let mut bytes = [0; 5];
/// block.read(Bytes(99), &mut bytes)?;
/// assert_eq!(bytes, [7, 1, 2, 3, 7]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Block {
    pool: Pool,
    address: Address,
    size: Bytes,
    stream: StreamId,
    /// Set once the block was left to the caller.
    is_left: bool,
}

impl Block {
    /// Returns the address of the first byte. It stays the same until the block is dropped, through
    /// every sleep.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the size that was asked for.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Returns the stream whose work may still use the block when it is dropped.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Sets the stream that uses the block last.
    pub fn set_stream(&mut self, stream: StreamId) {
        self.stream = stream;
    }

    /// Leaves the block to the caller, who frees it by its address with [`Pool::free`].
    pub fn into_address(mut self) -> Address {
        self.is_left = true;
        lock(&self.pool.shared.allocated_at).remove(&self.address.0);
        self.address
    }

    /// Copies `bytes` into the block, from `offset` on. Waits for the block's stream, if the pool has
    /// a fence, and until the bytes are there.
    ///
    /// # Errors
    /// [`Error::OutsideBlock`] where the bytes do not fit; [`Error::Asleep`] where the block's tag is
    /// asleep; [`Error::Lost`] where the block's content is lost ([`Pool::wake_losing`]) and these are
    /// not all its bytes; what the device refused.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        let length = Bytes(bytes.len() as u64);
        self.access(offset, length, Writes::Yes, |access, at| access.write(at, bytes))
    }

    /// Copies the block's bytes from `offset` on into `bytes`. Waits for the block's stream, if the
    /// pool has a fence.
    ///
    /// # Errors
    /// As [`Block::write`]; [`Error::Lost`] until all of a lost block was written.
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        let length = Bytes(bytes.len() as u64);
        self.access(offset, length, Writes::No, |access, at| access.read(at, bytes))
    }

    /// Sets every byte of the block. Waits for the block's stream, if the pool has a fence, and until
    /// the bytes are there.
    ///
    /// # Errors
    /// [`Error::Asleep`] where the block's tag is asleep; what the device refused.
    pub fn fill(&self, byte: u8) -> Result<()> {
        self.access(Bytes::ZERO, self.size, Writes::Yes, |access, at| {
            access.fill(at, byte, self.size)
        })
    }

    // While it runs, no sleep of the tag begins.
    fn access(
        &self,
        offset: Bytes,
        length: Bytes,
        writes: Writes,
        work: impl FnOnce(&HostAccess, (&Reservation, Bytes)) -> DeviceResult<()>,
    ) -> Result<()> {
        if offset.0.checked_add(length.0).is_none_or(|end| end > self.size.0) {
            return Err(Error::OutsideBlock { offset, length, size: self.size });
        }
        let shared = &self.pool.shared;
        check_outside_fence(&shared.monitor)?;
        let makes_good = writes == Writes::Yes && length == self.size;
        let job = self.begin_job(makes_good)?;
        let (reservation, start) = self.pool.place_of(self.address)?;
        // A stream's freed memory goes to new blocks of the same stream before the stream has passed.
        if let Some(fence) = &shared.fence {
            self.pool.wait_for_fence(fence, self.stream)?;
        }
        shared
            .access
            .with(&shared.device, |access| work(access, (&reservation, start + offset)))?;
        if job.was_lost {
            self.pool.state()?.lost.remove(&self.address.0);
        }
        Ok(())
    }

    // Waits for a turn of its tag. Refuses a block whose content is lost, unless all of it is written.
    fn begin_job(&self, makes_good: bool) -> Result<BlockJob<'_>> {
        let mut state = self.pool.state()?;
        let tag = state.arena_at(self.address)?.tag();
        let has_turned = |tags: &mut Tags| tags[tag].phase() != Phase::Turning;
        state = self.pool.shared.monitor.wait_until(state, Limit::NONE, has_turned)?;
        if state.tags[tag].phase() == Phase::Asleep {
            return Err(Error::Asleep { tag: state.tags[tag].name.to_string() });
        }
        let was_lost = state.lost.contains(&self.address.0);
        if was_lost && !makes_good {
            let tag = state.tags[tag].name.to_string();
            return Err(Error::Lost { tag, block: self.address });
        }
        state.tags.begin_job(tag);
        Ok(BlockJob { pool: &self.pool, tag, was_lost })
    }
}

/// A job on the memory of a block's tag, which ends when this is dropped.
struct BlockJob<'a> {
    pool: &'a Pool,
    tag: Tag,
    /// Set where the block's content was lost and is written now.
    was_lost: bool,
}

/// Whether an access writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Yes,
    No,
}

impl Drop for BlockJob<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.pool.state() {
            state.tags.end_job(self.tag);
        }
        self.pool.shared.monitor.notify();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A forked child must not touch a lock of its parent, which may be taken.
        if self.is_left || !self.pool.shared.monitor.is_own() {
            return;
        }
        // Afterwards its address may be another block's.
        lock(&self.pool.shared.allocated_at).remove(&self.address.0);
        match self.pool.free(self.address, self.stream) {
            // Its memory goes with the pool, or is the parent's.
            Ok(()) | Err(Error::Broken { .. } | Error::Device(lowtide_device::Error::Forked)) => {}
            Err(error) => tracing::error!(%error, "a block was freed behind its owner's back"),
        }
    }
}
