//! The chunks of an allocation, kept for another process.

use std::os::fd::OwnedFd;

use lowtide_device::Result;
use lowtide_types::Bytes;

use crate::driver::calls;

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
        let end = at + bytes;
        let mut chunks = Vec::new();
        while at < end {
            let bytes = calls::mapping_bytes(at)?;
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
