//! An arena: one long reservation, its blocks, and the chunks under them.
//!
//! An arena holds tables and calls no driver. A decision is returned as data; the caller calls the driver
//! without the lock and records the result here. Meanwhile the blocks concerned are busy, and no other
//! thread uses them. `runs.rs` finds places for new blocks, `chunks.rs` takes chunks away and keeps large
//! ones for one block each, and `asleep.rs` is about all of them at once.

mod asleep;
mod chunks;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lowtide_device::Reservation;

use crate::policy::GRAIN;
use crate::state::bins::Bins;
use crate::state::blocks::{BlockState, Blocks, NONE, SETTLED};

pub(crate) use runs::Run;

/// What a new block must have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    pub(crate) size: u64,
    /// Its start is a multiple of this.
    pub(crate) align: u64,
}

/// One long reservation, its blocks, and the chunks under them.
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
    /// Where chunks start that are large (`chunks.rs`).
    large: BTreeSet<u64>,
    /// The number of blocks that would have got a part of a large chunk.
    mixed: u32,
    /// The sum of the sizes of all chunks.
    mapped: u64,
    /// Busy blocks, each over a chunk that could be neither opened nor unmapped. Unmapping is tried
    /// again.
    stuck: Vec<u32>,
    /// While asleep: chunks that are mapped but do not hold what they should.
    stale: Vec<Range<u64>>,
}

impl Arena {
    pub(crate) fn new(reservation: Reservation, page: u64) -> Arena {
        let blocks = Blocks::new(reservation.size().0);
        let holes = BTreeMap::from([(0, blocks.first())]);
        let (cached, chunks) = (Vec::new(), BTreeMap::new());
        Arena {
            reservation,
            page,
            blocks,
            cached,
            holes,
            chunks,
            large: BTreeSet::new(),
            mixed: 0,
            mapped: 0,
            stuck: Vec::new(),
            stale: Vec::new(),
        }
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

    // Finds a cached block that this stream freed, or that is settled, and where in it the new one begins.
    fn find(&self, Fit { size, align }: Fit, stream: u32) -> Option<(u32, u64)> {
        let find = |freed_on: u32| {
            let find = |size| self.cached.get(freed_on as usize)?.find(&self.blocks, size);
            let fits = |block: &u32| {
                let block = self.blocks.get(*block);
                block.start.next_multiple_of(align) + size <= block.end()
            };
            // With room to align it, every block fits.
            find(size).filter(fits).or_else(|| find(size + align - GRAIN))
        };
        let block = find(stream).or_else(|| find(SETTLED))?;
        Some((block, self.blocks.get(block).start.next_multiple_of(align)))
    }

    /// Takes a cached block that this stream freed, or that is settled, and cuts it to size. Where a large chunk
    /// would be parted, it takes none, or it takes it if that `may_part`.
    pub(crate) fn take(&mut self, fit: Fit, stream: u32, may_part: bool) -> Option<u32> {
        let (block, start) = self.find(fit, stream)?;
        if let Some(parted) = self.parted(block, start + fit.size) {
            if !may_part {
                return None;
            }
            self.mix(&parted);
        }
        let block = self.carve(block, &(start..start + fit.size));
        self.blocks.get_mut(block).state = BlockState::Live;
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

    /// Gives all settled blocks to a stream, so that they are joined with those that it freed. Nothing uses
    /// them, whatever the stream has passed.
    pub(crate) fn adopt(&mut self, stream: u32) {
        let Some(settled) = self.cached.get(SETTLED as usize) else { return };
        let blocks: Vec<u32> = settled.at_least(&self.blocks, 0).collect();
        for block in blocks {
            self.leave(block);
            self.enter(block, BlockState::Cached, stream);
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

    fn page_start(&self, at: u64) -> u64 {
        at / self.page * self.page
    }

    fn page_end(&self, at: u64) -> u64 {
        at.next_multiple_of(self.page)
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
        assert!(self.large.iter().all(|start| self.chunks.contains_key(start)), "large chunks");
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
