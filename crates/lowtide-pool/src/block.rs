//! A block that frees itself.

use lowtide_device::{Address, Bytes};

use crate::{Pool, Result, StreamId, Tag};

/// A block of a pool, freed on its stream when it is dropped.
#[derive(Debug)]
pub struct Block {
    /// `None` once it was left to somebody else.
    pool: Option<Pool>,
    address: Address,
    size: Bytes,
    stream: StreamId,
}

impl Block {
    pub(crate) fn new(pool: &Pool, size: Bytes, stream: StreamId, tag: Tag) -> Result<Block> {
        let address = pool.alloc(size, stream, tag)?;
        Ok(Block { pool: Some(pool.clone()), address, size, stream })
    }

    /// Where it begins; stays until it is dropped, through every sleep.
    pub fn address(&self) -> Address {
        self.address
    }

    /// What was asked for.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The stream whose work may still use it when it is dropped.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Another stream is the last to use it.
    pub fn set_stream(&mut self, stream: StreamId) {
        self.stream = stream;
    }

    /// Leaves the block to a caller who frees it by its address.
    pub fn into_address(mut self) -> Address {
        self.pool = None;
        self.address
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        if let Err(error) = pool.free(self.address, self.stream) {
            tracing::error!(%error, "a block was freed behind its owner's back");
        }
    }
}
