//! The chunks of an allocation, kept for another process.

use std::os::fd::OwnedFd;

use lowtide_device::{Error, Result};
use lowtide_types::Bytes;

use crate::driver::calls;
use crate::driver::codes::INVALID_VALUE;

/// The page of virtual memory.
pub(super) const PAGE: Bytes = Bytes::mib(2);

/// A chunk with a reference of ours.
pub(crate) struct RetainedChunk {
    handle: u64,
    pub(crate) bytes: Bytes,
}

impl RetainedChunk {
    /// Takes a reference to each chunk of an allocation, in the order of their addresses. The allocation stays
    /// meanwhile, and is awake. The thread is one of ours: the context stays current in it.
    pub(super) fn all(context: usize, mut at: u64, bytes: u64) -> Result<Vec<RetainedChunk>> {
        calls::use_context(context)?;
        // A block is whole pages.
        let end = (at + bytes).next_multiple_of(PAGE.0);
        let mut chunks = Vec::new();
        while at < end {
            let (base, bytes) = calls::mapping(at)?;
            // A chunk that the driver once refused to take back may be of several allocations.
            if base != at || at + bytes.0 > end {
                let name = "a chunk belongs to several allocations".to_owned();
                let call = "cuMemRetainAllocationHandle";
                return Err(Error::Driver { device: None, call, code: INVALID_VALUE, name });
            }
            chunks.push(RetainedChunk { handle: calls::retain(at)?, bytes });
            at += bytes.0;
        }
        Ok(chunks)
    }

    /// Returns a descriptor by which another process gets the chunk.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        calls::export(self.handle)
    }
}

impl Drop for RetainedChunk {
    fn drop(&mut self) {
        // The driver keeps what it refuses to take back; nobody can do more.
        let _released = calls::release(self.handle);
    }
}
