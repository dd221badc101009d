//! Runs: places for new blocks, parts of which have no memory yet.

use std::ops::Range;

use super::{Arena, Fit};
use crate::state::blocks::{BlockState, NONE, SETTLED};

/// A place for a block, part of which has no memory yet.
#[derive(Debug)]
pub(crate) struct Run {
    /// The busy block; whole pages at its end.
    pub(crate) block: u32,
    /// The ranges that must be mapped.
    pub(crate) missing: Vec<Range<u64>>,
    /// The stream that owns the rest of the run: the one on which a part of it was freed, if any.
    owner: u32,
}

impl Arena {
    /// Finds where a block needs the fewest pages mapped: that many bytes, and the
    /// start. Cached blocks before and behind a hole count where the stream may use them.
    pub(crate) fn best_run(&self, fit: Fit, stream: u32) -> Option<(u64, u64)> {
        if fit.size > self.reservation.size().0 {
            return None;
        }
        self.holes.values().filter_map(|hole| self.run_around(*hole, fit, stream)).min()
    }

    /// Finds where a block goes that begins at a hole, or in the cached block before it.
    pub(crate) fn run_at(&self, inside: u64, fit: Fit, stream: u32) -> Option<(u64, u64)> {
        let (_, hole) = self.holes.range(..=inside).next_back()?;
        let is_there = inside < self.blocks.get(*hole).end();
        is_there.then(|| self.run_around(*hole, fit, stream)).flatten()
    }

    fn run_around(&self, hole: u32, fit: Fit, stream: u32) -> Option<(u64, u64)> {
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
        // A hole is aligned, because its pages are.
        let (start, size) = (self.blocks.get(first).start.next_multiple_of(fit.align), fit.size);
        let first = if start < self.blocks.get(first).end() { first } else { hole };
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

    /// Makes the run that [`Arena::best_run`] found busy.
    pub(crate) fn claim_run(&mut self, start: u64, size: u64) -> Run {
        let end = start + size;
        let first = self.free_block_at(start);
        let (mut missing, mut busy, mut at, mut owner) = (Vec::new(), NONE, first, SETTLED);
        loop {
            let entry = *self.blocks.get(at);
            let to = if entry.state == BlockState::Hole { self.page_end(end) } else { end };
            let range = entry.start.max(start)..entry.end().min(to);
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

    // A run begins with a hole, or in the cached block before one.
    pub(super) fn free_block_at(&self, start: u64) -> u32 {
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
}
