//! An arena before, during and after its sleep.

use std::ops::Range;

use super::Arena;
use crate::state::blocks::{Block, BlockState, SETTLED};

impl Arena {
    /// Lists runs of whole pages with live bytes on them, in the order of their addresses.
    pub(crate) fn live_pages(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.state == BlockState::Live) {
            let pages = self.page_start(block.start)..self.page_end(block.end());
            match runs.last_mut() {
                Some(last) if pages.start <= last.end => last.end = pages.end,
                _ => runs.push(pages),
            }
        }
        runs
    }

    /// Lists the live blocks, in the order of their addresses.
    pub(crate) fn live_blocks(&self) -> Vec<Range<u64>> {
        let live = self.blocks.iter().filter(|(_, block)| block.state == BlockState::Live);
        live.map(|(_, block)| block.range()).collect()
    }

    /// Finds a live block that overlaps a range.
    pub(crate) fn live_block_in(&self, range: &Range<u64>) -> Option<u64> {
        let over = |block: &Block| block.start < range.end && range.start < block.end();
        let live = |block: &Block| block.state == BlockState::Live && over(block);
        self.blocks.iter().find(|(_, block)| live(block)).map(|(_, block)| block.start)
    }

    /// Records that its memory is gone, all but what could not be taken away (some of which does not
    /// hold what it should): what was free are holes now, and live blocks stand on nothing.
    pub(crate) fn fall_asleep(&mut self, still_mapped: &[Range<u64>], stale: &[Range<u64>]) {
        let free = |(_, block): &(u32, &Block)| {
            matches!(block.state, BlockState::Cached | BlockState::Busy)
        };
        let free: Vec<u32> = self.blocks.iter().filter(free).map(|(index, _)| index).collect();
        // A hole swallows only holes, so each of these is still there when its turn comes.
        for index in free {
            self.leave(index);
            self.enter(index, BlockState::Hole, SETTLED);
        }
        self.stuck.clear();
        self.chunks.clear();
        self.large.clear();
        self.mapped = 0;
        self.add_chunks(still_mapped);
        self.stale = stale.to_vec();
    }

    /// Lists the chunks of a sleeping arena that do not hold their content.
    pub(crate) fn stale(&self) -> &[Range<u64>] {
        &self.stale
    }

    /// Frees a block of a sleeping arena: it leaves a hole.
    pub(crate) fn give_back_asleep(&mut self, block: u32) {
        debug_assert_eq!(self.blocks.get(block).state, BlockState::Live);
        self.enter(block, BlockState::Hole, SETTLED);
    }

    /// Records chunks under all live pages, and whatever else is on them is cached again.
    pub(crate) fn wake_up(&mut self, chunks: &[Range<u64>]) {
        self.chunks.clear();
        self.large.clear();
        self.mapped = 0;
        self.add_chunks(chunks);
        self.stale.clear();
        let holes: Vec<u32> = self.holes.values().copied().collect();
        for hole in holes {
            let Range { start, end } = self.blocks.get(hole).range();
            let first = self.chunks.range(..start).next_back();
            let chunks = first.into_iter().chain(self.chunks.range(start..end));
            let inside = chunks.map(|(at, size)| start.max(*at)..end.min(at + size));
            let inside: Vec<_> = inside.filter(|part| part.start < part.end).collect();
            // From the back, so that the hole keeps its index until its own start is taken.
            for part in inside.iter().rev() {
                let cached = self.carve(hole, part);
                self.enter(cached, BlockState::Cached, SETTLED);
            }
        }
    }
}
