//! An arena: one long reservation, its blocks, and the chunks under them.
//!
//! Everything here is books: what is decided is returned as data, and the caller does the driver's
//! part without the lock and comes back to record it. While that goes on, the blocks concerned are
//! busy, and nobody else touches them.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_device::Reservation;

use crate::bins::Bins;
use crate::blocks::{Block, BlockState, Blocks, NONE, SETTLED};

pub(crate) struct Arena {
    pub(crate) reservation: Reservation,
    page: u64,
    blocks: Blocks,
    /// Cached blocks, by the stream that freed them.
    cached: Vec<Bins>,
    /// Holes by where they start.
    holes: BTreeMap<u64, u32>,
    /// Chunks by where they start: their sizes.
    chunks: BTreeMap<u64, u64>,
    /// The sum of the sizes of all chunks.
    mapped: u64,
    /// Busy blocks, each over a chunk that could be neither opened nor unmapped. Unmapping is tried
    /// again.
    stuck: Vec<u32>,
    /// While asleep: chunks that are mapped but do not hold what they should.
    stale: Vec<Range<u64>>,
}

/// A place for a block, part of which has no memory yet.
#[derive(Debug)]
pub(crate) struct Run {
    /// The busy block; whole pages at its end.
    pub(crate) block: u32,
    /// The ranges that must be mapped.
    pub(crate) missing: Vec<Range<u64>>,
    /// Whose what is left over is: the stream's, where part of the run was freed on it.
    owner: u32,
}

impl Arena {
    pub(crate) fn new(reservation: Reservation, page: u64) -> Arena {
        let blocks = Blocks::new(reservation.size().0);
        let holes = BTreeMap::from([(0, blocks.first())]);
        let (cached, chunks) = (Vec::new(), BTreeMap::new());
        let (stuck, stale) = (Vec::new(), Vec::new());
        Arena { reservation, page, blocks, cached, holes, chunks, mapped: 0, stuck, stale }
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Returns the memory under its addresses.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    fn add_chunks(&mut self, chunks: &[Range<u64>]) {
        for chunk in chunks {
            self.chunks.insert(chunk.start, chunk.end - chunk.start);
            self.mapped += chunk.end - chunk.start;
        }
    }

    pub(crate) fn address_of(&self, block: u32) -> u64 {
        self.reservation.address().0 + self.blocks.get(block).start
    }

    /// Takes a cached block that this stream freed, or that is settled, and cuts it to size.
    pub(crate) fn take(&mut self, size: u64, stream: u32) -> Option<u32> {
        let find = |freed_on: u32| self.cached.get(freed_on as usize)?.find(&self.blocks, size);
        let block = find(stream).or_else(|| find(SETTLED))?;
        let freed_on = self.blocks.get(block).stream;
        self.leave(block);
        let rest = (self.blocks.get(block).size > size).then(|| self.blocks.split(block, size));
        // Before the rest is put back: it would join a neighbour that is still cached.
        self.blocks.get_mut(block).state = BlockState::Live;
        if let Some(rest) = rest {
            self.enter(rest, BlockState::Cached, freed_on);
        }
        Some(block)
    }

    /// Makes a live block a cached one, by the so-manieth free of a stream.
    pub(crate) fn give_back(&mut self, block: u32, stream: u32, freed: u64) {
        debug_assert_eq!(self.blocks.get(block).state, BlockState::Live);
        self.blocks.get_mut(block).freed = freed;
        self.enter(block, BlockState::Cached, stream);
    }

    /// Gives blocks free to everybody that a stream freed with its first so many frees.
    pub(crate) fn settle_stream(&mut self, stream: u32, passed: u64) {
        let Some(bins) = self.cached.get(stream as usize) else { return };
        let done = |block: &u32| self.blocks.get(*block).freed <= passed;
        let blocks: Vec<u32> = bins.at_least(&self.blocks, 0).filter(done).collect();
        for block in blocks {
            self.leave(block);
            self.enter(block, BlockState::Cached, SETTLED);
        }
    }

    // Takes a free block out of its list.
    fn leave(&mut self, block: u32) {
        let entry = *self.blocks.get(block);
        match entry.state {
            BlockState::Cached => {
                self.cached[entry.stream as usize].remove(&mut self.blocks, block);
            }
            BlockState::Hole => drop(self.holes.remove(&entry.start)),
            BlockState::Live | BlockState::Busy => {}
        }
    }

    // Puts a block that is in no list where its new state belongs, joined with its likes.
    fn enter(&mut self, block: u32, state: BlockState, stream: u32) {
        let mut block = block;
        let entry = self.blocks.get_mut(block);
        (entry.state, entry.stream) = (state, stream);
        if stream == SETTLED {
            // A number of no stream's: joined with a stream's, it must not count.
            entry.freed = 0;
        }
        let alike = |blocks: &Blocks, other: u32| {
            other != NONE && {
                let other = blocks.get(other);
                other.state == state && (state == BlockState::Hole || other.stream == stream)
            }
        };
        let (prev, next) = (self.blocks.get(block).prev, self.blocks.get(block).next);
        if alike(&self.blocks, next) {
            self.leave(next);
            self.blocks.join_next(block);
        }
        if alike(&self.blocks, prev) {
            self.leave(prev);
            self.blocks.join_next(prev);
            block = prev;
        }
        match state {
            BlockState::Cached => {
                let stream = stream as usize;
                if self.cached.len() <= stream {
                    self.cached.resize_with(stream + 1, Bins::default);
                }
                self.cached[stream].insert(&mut self.blocks, block);
            }
            BlockState::Hole => drop(self.holes.insert(self.blocks.get(block).start, block)),
            BlockState::Live | BlockState::Busy => {}
        }
    }

    // Cuts `range` out of a free block, makes it busy, and puts the rest back.
    fn carve(&mut self, block: u32, range: &Range<u64>) -> u32 {
        let whole = *self.blocks.get(block);
        self.leave(block);
        let mut middle = block;
        if whole.start < range.start {
            middle = self.blocks.split(block, range.start - whole.start);
        }
        let rest =
            (range.end < whole.end()).then(|| self.blocks.split(middle, range.end - range.start));
        self.blocks.get_mut(middle).state = BlockState::Busy;
        if middle != block {
            self.enter(block, whole.state, whole.stream);
        }
        if let Some(rest) = rest {
            self.enter(rest, whole.state, whole.stream);
        }
        middle
    }

    /// Finds where a block of this size needs the fewest pages mapped: that many bytes, and the
    /// start. Cached blocks before and behind a hole count where the stream may use them.
    pub(crate) fn best_run(&self, size: u64, stream: u32) -> Option<(u64, u64)> {
        if size > self.reservation.size().0 {
            return None;
        }
        self.holes.values().filter_map(|hole| self.run_around(*hole, size, stream)).min()
    }

    fn run_around(&self, hole: u32, size: u64, stream: u32) -> Option<(u64, u64)> {
        let free = |block: u32| {
            block != NONE && {
                let entry = self.blocks.get(block);
                entry.state == BlockState::Hole
                    || (entry.state == BlockState::Cached
                        && (entry.stream == stream || entry.stream == SETTLED))
            }
        };
        let before = self.blocks.get(hole).prev;
        let first = if free(before) { before } else { hole };
        let start = self.blocks.get(first).start;
        let (mut at, mut missing) = (first, 0);
        loop {
            let entry = self.blocks.get(at);
            if entry.state == BlockState::Hole {
                missing += entry.end().min(self.page_end(start + size)) - entry.start;
            }
            if entry.end() >= start + size {
                return Some((missing, start));
            }
            at = entry.next;
            if !free(at) {
                return None;
            }
        }
    }

    fn page_start(&self, at: u64) -> u64 {
        at / self.page * self.page
    }

    fn page_end(&self, at: u64) -> u64 {
        at.next_multiple_of(self.page)
    }

    /// Makes the run that [`Arena::best_run`] found busy.
    pub(crate) fn claim_run(&mut self, start: u64, size: u64) -> Run {
        let end = start + size;
        let first = self.free_block_at(start);
        let (mut missing, mut busy, mut at, mut owner) = (Vec::new(), NONE, first, SETTLED);
        loop {
            let entry = *self.blocks.get(at);
            let to = if entry.state == BlockState::Hole { self.page_end(end) } else { end };
            let range = entry.start..entry.end().min(to);
            if entry.state == BlockState::Hole {
                missing.push(range.clone());
            } else if entry.stream != SETTLED {
                owner = entry.stream;
            }
            let carved = self.carve(at, &range);
            if busy == NONE {
                busy = carved;
            } else {
                self.blocks.join_next(busy);
            }
            if range.end >= end {
                return Run { block: busy, missing, owner };
            }
            at = self.blocks.get(busy).next;
        }
    }

    // A run begins with a hole, or with the cached block before one.
    fn free_block_at(&self, start: u64) -> u32 {
        let (at, hole) = self.holes.range(start..).next().expect("a run has a hole in it");
        if *at == start { *hole } else { self.blocks.get(*hole).prev }
    }

    /// Records a run: live where all of it is mapped, otherwise free as far as it got.
    pub(crate) fn settle_run(&mut self, run: &Run, mapped: &[Range<u64>], size: u64) -> bool {
        let length = |range: &Range<u64>| range.end - range.start;
        self.add_chunks(mapped);
        let (got, wanted): (u64, u64) =
            (mapped.iter().map(length).sum(), run.missing.iter().map(length).sum());
        if got < wanted {
            self.unwind(run, mapped, &[]);
            return false;
        }
        let rest =
            (self.blocks.get(run.block).size > size).then(|| self.blocks.split(run.block, size));
        self.blocks.get_mut(run.block).state = BlockState::Live;
        if let Some(rest) = rest {
            self.enter(rest, BlockState::Cached, run.owner);
        }
        true
    }

    /// Records a run of which some chunks can be neither used nor given back for now.
    pub(crate) fn abandon_run(&mut self, run: &Run, mapped: &[Range<u64>], stuck: &[Range<u64>]) {
        self.add_chunks(mapped);
        self.unwind(run, mapped, stuck);
    }

    // Mapped parts become cached, or stay busy where they are stuck; the others are holes again.
    fn unwind(&mut self, run: &Run, mapped: &[Range<u64>], stuck: &[Range<u64>]) {
        let whole = *self.blocks.get(run.block);
        let mut parts = Vec::new();
        let mut at = whole.start;
        for range in &run.missing {
            parts.push((range.start - at, BlockState::Cached));
            at = range.start;
            // They were mapped from the front on, so they are in order.
            for chunk in mapped.iter().filter(|chunk| range.contains(&chunk.start)) {
                let is_stuck = stuck.contains(chunk);
                let state = if is_stuck { BlockState::Busy } else { BlockState::Cached };
                parts.push((chunk.start - at, BlockState::Hole));
                parts.push((chunk.end - chunk.start, state));
                at = chunk.end;
            }
            parts.push((range.end - at, BlockState::Hole));
            at = range.end;
        }
        parts.push((whole.end() - at, BlockState::Cached));
        parts.retain(|(size, _)| *size > 0);
        let mut part = run.block;
        for (index, (size, state)) in parts.iter().enumerate() {
            let rest = if index + 1 < parts.len() { self.blocks.split(part, *size) } else { NONE };
            match state {
                // It is busy already, and busy blocks are not joined.
                BlockState::Busy => self.stuck.push(part),
                BlockState::Hole => self.enter(part, *state, SETTLED),
                _ => self.enter(part, *state, run.owner),
            }
            part = rest;
        }
    }

    /// Lists chunks with nothing live or busy on them, whose last users are done.
    pub(crate) fn free_chunks(&self) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let Some(settled) = self.cached.get(SETTLED as usize) else { return found };
        for block in settled.at_least(&self.blocks, self.page) {
            let block = self.blocks.get(block);
            let inside = self.chunks.range(block.start..block.end());
            let chunks = inside.map(|(start, size)| *start..start + size);
            found.extend(chunks.filter(|chunk| chunk.end <= block.end()));
        }
        found
    }

    /// Makes a free chunk busy; `None` where it is not free, or not there.
    pub(crate) fn claim_chunk(&mut self, chunk: &Range<u64>) -> Option<u32> {
        if self.chunks.get(&chunk.start) != Some(&(chunk.end - chunk.start)) {
            return None;
        }
        // The list is walked again, which is cheap beside the driver's part.
        let over = |block: &u32| {
            let entry = self.blocks.get(*block);
            entry.start <= chunk.start && chunk.end <= entry.end()
        };
        let settled = self.cached.get(SETTLED as usize)?;
        let found = settled.at_least(&self.blocks, chunk.end - chunk.start).find(over)?;
        Some(self.carve(found, chunk))
    }

    /// Records that a claimed chunk was unmapped, or that it was not.
    pub(crate) fn settle_chunk(&mut self, block: u32, unmapped: bool) {
        if unmapped {
            let size = self.chunks.remove(&self.blocks.get(block).start);
            self.mapped -= size.expect("a claimed chunk is in the books");
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

    /// Runs of whole pages with live bytes on them, in the order of their addresses.
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

    /// Checks every invariant; panics where one does not hold.
    pub(crate) fn check(&self, asleep: bool, is_quiet: bool) {
        let (mut end, mut last) = (0, None);
        for (index, block) in self.blocks.iter() {
            assert_eq!(block.start, end, "blocks follow one another");
            assert!(block.size > 0, "no block is empty");
            end = block.end();
            let chunks = self.mapped_in(block.start..block.end());
            let expected = if block.state == BlockState::Hole { 0 } else { block.size };
            assert!(!asleep || block.state != BlockState::Cached, "{block:?} is cached asleep");
            assert!(
                !is_quiet || asleep || block.state == BlockState::Busy || chunks == expected,
                "{block:?} has {chunks} bytes of chunks under it"
            );
            let key = (block.state, block.stream);
            let joins = matches!(block.state, BlockState::Hole | BlockState::Cached);
            assert!(!joins || last != Some(key), "{block:?} should have been joined");
            last = Some(key);
            let listed = match block.state {
                BlockState::Hole => self.holes.get(&block.start) == Some(&index),
                BlockState::Cached => {
                    let mut bin =
                        self.cached[block.stream as usize].at_least(&self.blocks, block.size);
                    bin.any(|listed| listed == index)
                }
                BlockState::Live | BlockState::Busy => true,
            };
            assert!(listed, "{block:?} is in no list");
        }
        assert_eq!(end, self.reservation.size().0, "blocks cover the arena");
        assert_eq!(self.mapped, self.chunks.values().sum::<u64>(), "the sum of the chunks");
        // A driver call that is under way has changed the mappings and not the tables yet.
        let is_mapped = !is_quiet || self.reservation.mapped().0 == self.mapped;
        assert!(is_mapped, "every chunk is mapped");
    }

    fn mapped_in(&self, range: Range<u64>) -> u64 {
        let first = self.chunks.range(..range.start).next_back();
        let chunks = first.into_iter().chain(self.chunks.range(range.clone()));
        let shared = |(start, size): (&u64, &u64)| {
            (start + size).min(range.end).saturating_sub((*start).max(range.start))
        };
        chunks.map(shared).sum()
    }
}
