//! Large chunks: each was made for one block, and no other block gets a part of it.
//!
//! A sleep pays the driver for every chunk, so a new block of many pages gets few large ones. But a chunk goes back
//! to the device only as a whole: a small block on a part of a large chunk would keep all of it. So where a block
//! would get a part, the chunk goes back first, and small chunks take its place. From then on sizes are mixed in
//! this arena, and all new chunks are small, until nothing is mapped. This happens a few times at most: a program
//! that goes on mixing sizes should not wait for the driver.

use std::ops::Range;

use super::{Arena, Fit};
use crate::state::blocks::{BlockState, SETTLED};
use crate::state::streams::Streams;

impl Arena {
    /// Lists chunks with nothing live or busy on them, whose last users are done.
    pub(crate) fn free_chunks(&self, streams: &Streams) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for block in self.unused(streams, self.page) {
            let block = self.blocks.get(block);
            let inside = self.chunks.range(block.start..block.end());
            let chunks = inside.map(|(start, size)| *start..start + size);
            found.extend(chunks.filter(|chunk| chunk.end <= block.end()));
        }
        found
    }

    // Cached blocks of at least about this size whose last users are done: settled ones, and those that
    // their stream has passed.
    fn unused(&self, streams: &Streams, size: u64) -> impl Iterator<Item = u32> {
        self.cached.iter().zip(0..).flat_map(move |(bins, stream)| {
            let passed = streams.passed(stream);
            let blocks = bins.at_least(&self.blocks, size);
            blocks.filter(move |block| self.blocks.get(*block).freed <= passed)
        })
    }

    /// Makes a free chunk busy; `None` where it is not free, or not there.
    pub(crate) fn claim_chunk(&mut self, chunk: &Range<u64>, streams: &Streams) -> Option<u32> {
        if self.chunks.get(&chunk.start) != Some(&(chunk.end - chunk.start)) {
            return None;
        }
        // The list is walked again, which is cheap beside the driver's part.
        let over = |block: &u32| {
            let entry = self.blocks.get(*block);
            entry.start <= chunk.start && chunk.end <= entry.end()
        };
        let found = self.unused(streams, chunk.end - chunk.start).find(over)?;
        Some(self.carve(found, chunk))
    }

    /// Records that a claimed chunk was unmapped, or that it was not.
    pub(crate) fn settle_chunk(&mut self, block: u32, unmapped: bool) {
        if unmapped {
            let start = self.blocks.get(block).start;
            let size = self.chunks.remove(&start);
            self.mapped -= size.expect("a claimed chunk is in the table");
            self.large.remove(&start);
            if self.mapped == 0 {
                self.mixed = 0;
            }
            self.enter(block, BlockState::Hole, SETTLED);
        } else {
            self.enter(block, BlockState::Cached, SETTLED);
        }
    }

    pub(crate) fn has_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Takes the chunks that are stuck off their list, with their blocks. Each is recorded by
    /// [`Arena::settle_stuck`] then.
    pub(crate) fn take_stuck(&mut self) -> Vec<(u32, Range<u64>)> {
        let stuck = std::mem::take(&mut self.stuck).into_iter();
        stuck.map(|block| (block, self.blocks.get(block).range())).collect()
    }

    /// Records that a chunk that was stuck is unmapped, or that it is still stuck.
    pub(crate) fn settle_stuck(&mut self, block: u32, unmapped: bool) {
        if unmapped {
            self.settle_chunk(block, true);
        } else {
            self.stuck.push(block);
        }
    }

    /// Lists all chunks, in the order of their addresses.
    pub(crate) fn chunks(&self) -> Vec<Range<u64>> {
        self.chunks.iter().map(|(start, size)| *start..start + size).collect()
    }

    /// Adds up the chunks without a live byte.
    pub(crate) fn without_live_bytes(&self) -> u64 {
        let (live, mut next) = (self.live_pages(), 0);
        let is_free = |chunk: &Range<u64>| {
            while live.get(next).is_some_and(|run| run.end <= chunk.start) {
                next += 1;
            }
            live.get(next).is_none_or(|run| run.start >= chunk.end)
        };
        self.chunks().into_iter().filter(is_free).map(|chunk| chunk.end - chunk.start).sum()
    }
}

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
