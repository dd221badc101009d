//! Arenas that fall asleep and wake: their chunks, how they leave their addresses, and what a failed
//! wake takes away again.

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Bytes, Chunk, Reservation};

use crate::Result;
use crate::copy::streams::{twice, unmap};
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::{PAGE, Policy, equal_part};
use crate::state::arena::Arena;
use crate::state::arenas::ArenaId;

/// An arena that falls asleep.
pub(crate) struct SleepPart {
    /// Which of the turn's tags it belongs to.
    pub(crate) turning: usize,
    pub(crate) arena_id: ArenaId,
    /// The name of its tag.
    pub(crate) name: Arc<str>,
    /// Set where its content is saved, rather than lost.
    pub(crate) saves: bool,
    pub(crate) reservation: Reservation,
    pub(crate) chunks: Vec<Range<u64>>,
    /// Runs of pages with live bytes on them.
    pub(crate) pages: Vec<Range<u64>>,
    /// Runs of pages with live bytes that have left the device before: their backups stay.
    pub(crate) left: Vec<Range<u64>>,
}

impl SleepPart {
    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.chunks.iter().map(|chunk| chunk.end - chunk.start).sum())
    }

    /// Returns whether it still has all its memory, as the device layer says.
    pub(crate) fn is_whole(&self) -> bool {
        let mappings = self.reservation.mappings();
        let ranges = mappings.iter().map(|mapping| &mapping.range);
        mappings.iter().all(|mapping| mapping.is_open) && ranges.eq(self.chunks.iter())
    }
}

/// Chunks that left their addresses and still hold their content. Dropping them frees the memory.
#[derive(Default)]
pub(crate) struct HeldChunks {
    list: Vec<(Reservation, Range<u64>, Chunk)>,
}

impl HeldChunks {
    /// Takes all chunks of these parts from their addresses, or none.
    pub(crate) fn unmap<'a>(
        parts: impl Iterator<Item = &'a SleepPart> + Clone,
        limit: Limit<'_>,
    ) -> Result<HeldChunks> {
        let (total, mut done) = (parts.clone().map(SleepPart::size).sum(), Bytes::ZERO);
        let mut held = HeldChunks::default();
        for (part, range) in
            parts.flat_map(|part| part.chunks.iter().map(move |range| (part, range)))
        {
            let taken = limit
                .ask(TurnStep::Unmapping, || Progress { done, total })
                .and_then(|()| Ok(unmap(&part.reservation, range)?));
            match taken {
                Ok(chunk) => {
                    done += chunk.size();
                    held.list.push((part.reservation.clone(), range.clone(), chunk));
                }
                Err(error) => {
                    held.put_back();
                    return Err(error);
                }
            }
        }
        Ok(held)
    }

    /// Puts the chunks back under their addresses. What cannot be put back is missing when the turn is
    /// recorded: its tag is asleep then.
    pub(crate) fn put_back(self) {
        for (reservation, range, chunk) in self.list {
            let (at, size) = (Bytes(range.start), chunk.size());
            let mapped =
                reservation.map(at, chunk).or_else(|refused| reservation.map(at, refused.chunk));
            let opened = mapped
                .map_err(lowtide_device::Error::from)
                .and_then(|()| twice(|| reservation.open(at, size)));
            if let Err(error) = opened {
                tracing::error!(%error, "memory could not be put back; its tag is asleep");
            }
        }
    }
}

/// An arena that wakes.
pub(crate) struct WakePart {
    /// Which of the turn's tags it belongs to.
    pub(crate) turning: usize,
    pub(crate) arena_id: ArenaId,
    /// Set where its content comes back, rather than being undefined.
    pub(crate) restores: bool,
    pub(crate) reservation: Reservation,
    /// Memory that could not be taken away and does not hold what it should: it is in the way.
    pub(crate) stale: Vec<Range<u64>>,
    /// Memory that could not be taken away and holds its content: it stays.
    pub(crate) kept: Vec<Range<u64>>,
    /// The chunks that are to be made.
    pub(crate) chunks: Vec<Range<u64>>,
}

impl WakePart {
    /// Plans chunks under the live pages of an arena.
    pub(crate) fn plan(
        turning: usize,
        arena_id: ArenaId,
        restores: bool,
        arena: &Arena,
        policy: &Policy,
    ) -> WakePart {
        let stale = arena.stale().to_vec();
        let mut kept = arena.chunks();
        kept.retain(|chunk| !is_among(&stale, chunk));
        let mut runs = if policy.apart.is_some() { arena.live_blocks() } else { Vec::new() };
        let is_whole = |at: u64| at.is_multiple_of(PAGE);
        // Blocks that are not whole pages share theirs.
        if !runs.iter().all(|run| is_whole(run.start) && is_whole(run.end)) || runs.is_empty() {
            runs = arena.live_pages();
        }
        let missing = without(runs, &kept);
        let chunks = missing.into_iter().flat_map(|run| cut(&run, policy)).collect();
        let reservation = arena.reservation.clone();
        WakePart { turning, arena_id, restores, reservation, stale, kept, chunks }
    }

    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.chunks.iter().map(|chunk| chunk.end - chunk.start).sum())
    }

    /// Removes what a failed turn left behind.
    pub(crate) fn clear_the_way(&self) -> Result<()> {
        for range in &self.stale {
            unmap(&self.reservation, range)?;
        }
        for mapping in self.reservation.mappings().into_iter().filter(|mapping| !mapping.is_open) {
            let Range { start, end } = mapping.range;
            self.reservation.open(Bytes(start), Bytes(end - start))?;
        }
        Ok(())
    }

    /// Takes away what a wake mapped before it failed. What stays is recorded and tried again.
    pub(crate) fn take_away(&self) {
        for range in self.mapped_here() {
            if let Err(error) = unmap(&self.reservation, &range) {
                tracing::error!(%error, "memory of a failed wake stays for now");
            }
        }
    }

    /// Returns what is mapped, apart from what was kept.
    pub(crate) fn mapped_here(&self) -> Vec<Range<u64>> {
        let mappings = self.reservation.mappings().into_iter().map(|mapping| mapping.range);
        mappings.filter(|range| !is_among(&self.kept, range)).collect()
    }
}

fn cut(run: &Range<u64>, policy: &Policy) -> Vec<Range<u64>> {
    let chunk = match policy.apart {
        Some(most) => equal_part(run.end - run.start, most.0, PAGE),
        None => (policy.numbers.wake_chunk_most.0 / PAGE).max(1) * PAGE,
    };
    let starts = run.clone().step_by(chunk as usize);
    starts.map(|start| start..run.end.min(start.saturating_add(chunk))).collect()
}

// Whether a range is one of some that are in the order of addresses.
fn is_among(ranges: &[Range<u64>], one: &Range<u64>) -> bool {
    let found = ranges.binary_search_by_key(&one.start, |range| range.start);
    found.is_ok_and(|index| ranges[index] == *one)
}

/// Returns what of the runs the others do not cover. Both are in the order of addresses.
pub(crate) fn without(runs: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for run in runs {
        let mut at = run.start;
        let first = others.partition_point(|other| other.end <= run.start);
        for other in others[first..].iter().take_while(|other| other.start < run.end) {
            if at < other.start {
                left.push(at..other.start);
            }
            at = other.end;
        }
        if at < run.end {
            left.push(at..run.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_into_whole_pages() {
        let policy = Policy::default();
        let cut = |most| {
            super::cut(
                &(PAGE..6 * PAGE),
                &policy.numbers(|numbers| numbers.wake_chunk_most = Bytes(most)),
            )
        };
        assert_eq!(cut(u64::MAX).pop(), Some(PAGE..6 * PAGE), "one piece");
        let by_two = [PAGE..3 * PAGE, 3 * PAGE..5 * PAGE, 5 * PAGE..6 * PAGE];
        assert_eq!(cut(2 * PAGE), by_two);
        assert_eq!(cut(3 * PAGE - 1), by_two, "rounded down");
        assert_eq!(cut(0).len(), 5, "a page at least");
    }

    #[test]
    fn what_is_there_is_not_missing() {
        let without = |others: &[Range<u64>]| super::without(vec![0..4, 6..10], others);
        assert_eq!(without(&[]), [0..4, 6..10]);
        assert_eq!(without(&[2..7, 9..12]), [0..2, 7..9]);
        assert_eq!(without(&[0..1, 3..4, 4..6]), [1..3, 6..10]);
        assert_eq!(without(&[0..5, 5..12]), []);
    }
}
