//! The memory of one handle of the program: a block of a pool.

use std::sync::Arc;

use lowtide_device::Address;
use lowtide_types::Bytes;

use crate::memory::context::ProgramContext;
use crate::memory::virtual_pool::VirtualPool;
use crate::say::say;

/// The tag of this memory in its pool, and in the ledger.
const TAG: &str = "virtual memory of the program";

/// The attempts to allocate a block that is one chunk.
const ATTEMPTS: u32 = 2;

/// The memory of one handle.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) context: Arc<ProgramContext>,
    pool: VirtualPool,
    pub(super) at: Address,
}

impl Block {
    /// Allocates a block that is one chunk; `None` where there is none to be had.
    pub(super) fn allocate(
        context: &Arc<ProgramContext>,
        pool: &VirtualPool,
        bytes: Bytes,
    ) -> lowtide_pool::Result<Option<Block>> {
        for _ in 0..ATTEMPTS {
            let at = context.allocate(&pool.pool, TAG, bytes)?;
            let block = Block { context: Arc::clone(context), pool: pool.clone(), at };
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
        self.pool.handle_at(self.at, bytes)
    }

    /// Gives the memory back to the device. The program was told that it is gone; what fails now is only memory
    /// that stays taken.
    pub(super) fn give_back(&self) {
        match self.context.give_back(&self.pool.pool, self.at) {
            Ok(()) => {}
            Err(lowtide_pool::Error::Device(error)) if error.is_context_lost() => {}
            Err(error) => say!("freed virtual memory stays on the device: {error}"),
        }
    }
}
