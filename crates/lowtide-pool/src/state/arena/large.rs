//! Large chunks: each was made for one block, and no other block gets a part of it.
//!
//! A sleep pays the driver for every chunk, so a new block of many pages gets few large ones. But a chunk goes back
//! to the device only as a whole: a small block on a part of a large chunk would keep all of it. So where a block
//! would get a part, the chunk goes back first, and small chunks take its place. From then on sizes are mixed in
//! this arena, and all new chunks are small, until nothing is mapped. This happens a few times at most: a program
//! that goes on mixing sizes should not wait for the driver.

use std::ops::Range;

use super::{Arena, Fit};
use crate::state::blocks::BlockState;

/// The number of large chunks that are given back for smaller blocks, before all others count as small.
const GIVEN_BACK_MOST: u32 = 32;

impl Arena {
    /// Returns whether blocks of many sizes come and go here.
    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed > 0
    }

    /// Records which chunks are large, by where they start.
    pub(crate) fn add_large(&mut self, starts: &[u64]) {
        self.large.extend(starts);
    }

    /// Lets every block have a part of this chunk: it was given back, or it could not be.
    pub(crate) fn mix(&mut self, chunk: &Range<u64>) {
        self.large.remove(&chunk.start);
        self.mixed += 1;
        if self.mixed == GIVEN_BACK_MOST {
            self.large.clear();
        }
    }

    /// Finds the large chunk of which a new block would get a part.
    pub(crate) fn parted_by(&self, fit: Fit, stream: u32) -> Option<Range<u64>> {
        if self.large.is_empty() {
            return None;
        }
        if let Some((block, start)) = self.find(fit, stream) {
            return self.parted(block, start + fit.size);
        }
        let (_, start) = self.best_run(fit, stream)?;
        let (mut at, end) = (self.free_block_at(start), start + fit.size);
        while self.blocks.get(at).end() < end {
            at = self.blocks.get(at).next;
        }
        self.parted(at, end)
    }

    /// Finds the large chunk of which a block up to `end` would get a part, on a free block.
    pub(super) fn parted(&self, block: u32, end: u64) -> Option<Range<u64>> {
        let block = self.blocks.get(block);
        let start = *self.large.range(block.start..end).next_back()?;
        let chunk = start..start + self.chunks[&start];
        let is_free = block.state == BlockState::Cached && chunk.end <= block.end();
        (is_free && end < chunk.end).then_some(chunk)
    }
}
