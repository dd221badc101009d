//! Moves: free chunks that leave their place, to go under another block or back to the device.
//!
//! A claimed chunk is busy and counts as a job of its tag until the move is recorded, so that nobody
//! else touches it while the driver is called without the lock.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Chunk, Error, RangeProblem, Reservation};

use crate::ahead::round::{PageReader, READS_MOST};
use crate::copy::streams::unmap_once;
use crate::state::State;
use crate::state::arenas::ArenaId;

/// A chunk with nothing live on it, whose last users are done.
pub(crate) struct FreeChunk {
    pub(crate) arena_id: ArenaId,
    pub(crate) range: Range<u64>,
}

impl FreeChunk {
    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A free chunk that a thread has claimed.
pub(crate) struct Move {
    arena_id: ArenaId,
    reservation: Reservation,
    block: u32,
    pub(crate) range: Range<u64>,
    /// May still read what was freed.
    reader: Arc<PageReader>,
}

impl Move {
    /// Takes the chunk from its place.
    pub(crate) fn unmap(&self) -> lowtide_device::Result<Chunk> {
        for _ in 0..READS_MOST {
            match unmap_once(&self.reservation, &self.range) {
                Err(Error::BadRange { problem: RangeProblem::InUse, .. }) => {
                    self.reader.wait(self.arena_id, &self.range);
                }
                outcome => return outcome,
            }
        }
        unmap_once(&self.reservation, &self.range)
    }
}

impl State {
    /// Lists free chunks of tags that are awake: those of about the missing size first, then from the
    /// largest down.
    pub(crate) fn free_chunks(&self, missing: u64) -> Vec<FreeChunk> {
        let mut free = Vec::new();
        for (id, arena) in self.arenas.iter().filter(|(id, _)| self.is_awake(*id)) {
            let chunks = arena.free_chunks(&self.streams).into_iter();
            free.extend(chunks.map(|range| FreeChunk { arena_id: id, range }));
        }
        let most = missing.checked_next_power_of_two().unwrap_or(u64::MAX);
        free.sort_by_key(|chunk| Reverse(chunk.size().min(most)));
        free
    }

    /// Claims a chunk; `None` where it is no longer free.
    pub(crate) fn claim(&mut self, FreeChunk { arena_id, range }: FreeChunk) -> Option<Move> {
        if !self.is_awake(arena_id) {
            return None;
        }
        let arena = &mut self.arenas[arena_id];
        let block = arena.claim_chunk(&range, &self.streams)?;
        let reservation = arena.reservation.clone();
        self.tags.begin_job(arena_id.tag());
        let reader = Arc::clone(&self.reader);
        Some(Move { arena_id, reservation, block, range, reader })
    }

    /// Returns whether a chunk of an awake tag could be neither opened nor unmapped.
    pub(crate) fn has_stuck(&self) -> bool {
        self.awake_arenas().into_iter().any(|arena_id| self.arenas[arena_id].has_stuck())
    }

    /// Claims every chunk of awake tags that could be neither opened nor unmapped.
    pub(crate) fn claim_stuck(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        for arena_id in self.awake_arenas() {
            let arena = &mut self.arenas[arena_id];
            let reservation = arena.reservation.clone();
            for (block, range) in arena.take_stuck() {
                let (reservation, reader) = (reservation.clone(), Arc::clone(&self.reader));
                moves.push(Move { arena_id, reservation, block, range, reader });
                self.tags.begin_job(arena_id.tag());
            }
        }
        moves
    }

    /// Records what became of a chunk of [`State::claim_stuck`].
    pub(crate) fn settle_stuck(&mut self, Move { arena_id, block, .. }: &Move, unmapped: bool) {
        self.arenas[*arena_id].settle_stuck(*block, unmapped);
        self.tags.end_job(arena_id.tag());
        self.count_physical();
    }

    /// Records what became of claimed chunks: the first so many left their place.
    pub(crate) fn settle_moves(&mut self, moves: &[Move], moved: usize) {
        for (index, Move { arena_id, block, .. }) in moves.iter().enumerate() {
            self.arenas[*arena_id].settle_chunk(*block, index < moved);
            self.tags.end_job(arena_id.tag());
        }
        self.count_physical();
    }
}
