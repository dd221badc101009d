//! The pools that have the memory of the program's handles, and its blocks.

use std::sync::Arc;

use lowtide_device::{Address, Device};
use lowtide_pool::{Policy, Pool, StreamId};
use lowtide_types::{Bytes, SleepPolicy};

use super::chunks::{ProgramsChunks, RealHandles};
use crate::driver::properties::Properties;
use crate::memory::allocations::Home;
use crate::say::say;

/// The tag of this memory in its pool, and in the ledger.
const TAG: &str = "virtual memory of the program";

/// The attempts to allocate a block that is one chunk.
const ATTEMPTS: u32 = 2;

/// A pool of chunks with the same properties.
#[derive(Clone)]
pub(crate) struct ProgramsPool {
    pub(crate) pool: Pool,
    handles: Arc<RealHandles>,
}

impl ProgramsPool {
    /// Makes a pool of chunks on a device. Each block has one chunk, as large as it is.
    pub(crate) fn new(
        device: &Device,
        properties: Properties,
        policy: Policy,
    ) -> lowtide_pool::Result<ProgramsPool> {
        let handles = Arc::<RealHandles>::default();
        let chunks =
            ProgramsChunks { device: device.clone(), properties, handles: Arc::clone(&handles) };
        let device = Device::new(chunks);
        let policy = policy.chunk_most(Bytes(u64::MAX));
        Ok(ProgramsPool { pool: Pool::builder(&device).policy(policy).build()?, handles })
    }
}

/// A block of such a pool: the memory of one handle.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) home: Arc<Home>,
    pool: ProgramsPool,
    pub(super) at: Address,
}

impl Block {
    /// Allocates a block that is one chunk; `None` where there is none to be had.
    pub(super) fn allocate(
        home: &Arc<Home>,
        pool: &ProgramsPool,
        bytes: Bytes,
    ) -> lowtide_pool::Result<Option<Block>> {
        let tag = pool.pool.tag(TAG, SleepPolicy::Offload)?;
        for _ in 0..ATTEMPTS {
            let changing = home.changing();
            let at = pool.pool.alloc(bytes, StreamId::default(), tag)?;
            drop(changing);
            let block = Block { home: Arc::clone(home), pool: pool.clone(), at };
            if block.real(bytes).is_some() {
                return Ok(Some(block));
            }
            // A part of a chunk that the driver has once refused to take back. It may take it now.
            block.give_back();
        }
        Ok(None)
    }

    /// Returns the real handle, which is there while the memory is awake.
    pub(super) fn real(&self, bytes: Bytes) -> Option<u64> {
        self.pool.handles.at(self.at, bytes)
    }

    /// Gives the memory back to the device. The program was told that it is gone; what fails now is only memory
    /// that stays taken.
    pub(super) fn give_back(&self) {
        let _changing = self.home.changing();
        let freed = self.pool.pool.free(self.at, StreamId::default());
        match freed.and_then(|()| self.pool.pool.trim(Bytes::ZERO)) {
            Ok(_) => {}
            Err(lowtide_pool::Error::Device(error)) if error.is_context_lost() => {}
            Err(error) => say!("freed virtual memory stays on the device: {error}"),
        }
    }
}
