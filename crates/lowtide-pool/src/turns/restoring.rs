//! Restoring: chunks on their way back, the pieces of each, and the digests that its pages must have.

use std::ops::Range;

use lowtide_device::Bytes;
use lowtide_device::digest::{Digest, Keys};

use crate::backups::slab::Memory;
use crate::backups::{BackupLocation, Backups, Saved};
use crate::copy::packing::{Form, PieceForm, Ring};
use crate::copy::piece::Piece;
use crate::copy::queue::{Arrivals, Direction};
use crate::copy::streams::CopyStreams;
use crate::copy::transfer::Transfer;
use crate::error::TurnStep;
use crate::lock::limit::Limit;
use crate::policy::{PAGE, PIECE};
use crate::turns::parts::WakePart;
use crate::{Result, copy};

/// Chunks on their way back.
pub(crate) struct Restoring<'a> {
    chunks: Vec<Returning<'a>>,
}

struct Returning<'a> {
    part: &'a WakePart,
    range: &'a Range<u64>,
    /// Neighbours on the device and in the backup, each run within a piece.
    runs: Vec<Run>,
    expected: Vec<Digest>,
}

struct Run {
    offset: u64,
    size: Bytes,
    /// `None` where it is all zeros.
    from: Option<(Memory, Bytes, PieceForm)>,
}

impl<'a> Restoring<'a> {
    pub(crate) fn plan(parts: &[&'a WakePart], backups: &mut Backups) -> Restoring<'a> {
        let mut chunks = Vec::new();
        for part in parts {
            for range in &part.chunks {
                let pages: Vec<(u64, Saved)> = backups
                    .pages(part.arena_id)
                    .range(range.clone())
                    .map(|(at, saved)| (*at, *saved))
                    .collect();
                let saved = pages.len() as u64 * PAGE;
                assert_eq!(saved, range.end - range.start, "every page was saved");
                let runs = pages.chunk_by(follows).map(|run| Run::new(run, backups)).collect();
                let expected = pages.iter().map(|(_, saved)| saved.digest).collect();
                chunks.push(Returning { part, range, runs, expected });
            }
        }
        Restoring { chunks }
    }

    pub(crate) fn copied(&self) -> Bytes {
        let runs = self.chunks.iter().flat_map(|chunk| &chunk.runs);
        runs.filter(|run| run.from.is_some()).map(|run| run.size).sum()
    }

    /// Returns whether some pages are packed.
    pub(crate) fn is_packed(&self) -> bool {
        let mut runs = self.chunks.iter().flat_map(|chunk| &chunk.runs);
        runs.any(|run| run.from.as_ref().is_some_and(|(_, _, form)| form.form == Form::Packed))
    }

    /// Makes each chunk, has its pieces copied in, and takes its digests once they have arrived.
    /// Returns the pages that are not right.
    pub(crate) fn copy(
        &self,
        streams: &CopyStreams,
        ring: Option<&Ring>,
        limit: Limit<'_>,
        make: impl Fn(&WakePart, &Range<u64>) -> Result<()>,
        make_empty: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<(&'a WakePart, u64)>> {
        let checks = &streams.checks;
        let expected = self.chunks.iter().enumerate();
        let expected = expected.flat_map(|(number, chunk)| chunk.pieces(number));
        let transfer = Transfer::new(Direction::In, self.chunks.len(), expected);
        let mut wrong = Vec::new();
        copy::run(streams, &transfer, ring, limit, |copy_here| {
            for (number, chunk) in self.chunks.iter().enumerate() {
                make(chunk.part, chunk.range)?;
                for run in chunk.runs.iter().filter(|run| run.from.is_none()) {
                    let at = (&chunk.part.reservation, Bytes(run.offset));
                    checks.fill(at, 0, run.size)?;
                }
                transfer.queue.add(chunk.pieces(number));
            }
            make_empty()?;
            copy_here()?;
            let (mut pending, mut left) = (Vec::new(), self.chunks.len());
            while left > 0 {
                // As they arrive: direct pieces may be last, whatever their chunk's number.
                let all = |arrivals: &mut Arrivals| {
                    (!arrivals.chunks.is_empty()).then(|| std::mem::take(&mut arrivals.chunks))
                };
                let Some(mut batch) = transfer.queue.wait_until(all) else {
                    return Ok(()); // who failed says why
                };
                left -= batch.len();
                batch.make_contiguous().sort_unstable();
                let batch: Vec<_> = batch.into_iter().map(|chunk| &self.chunks[chunk]).collect();
                let of_arena = |one: &&Returning<'_>, next: &&Returning<'_>| {
                    one.part.arena_id == next.part.arena_id
                };
                for chunks in batch.chunk_by(of_arena) {
                    let ranges: Vec<_> = chunks.iter().map(|chunk| chunk.range.clone()).collect();
                    let (of, keys) = (&chunks[0].part.reservation, Keys::of_this_process());
                    pending.push((chunks.to_vec(), checks.digest_ranges(of, &ranges, keys)?));
                }
            }
            limit.ask(TurnStep::Checking, || transfer.progress())?;
            for (chunks, pending) in pending {
                let mut digests = pending.wait()?.into_iter();
                for chunk in chunks {
                    let pages = chunk.range.clone().step_by(PAGE as usize).zip(&mut digests);
                    let pages = pages.zip(&chunk.expected);
                    let differs = pages.filter(|((_, digest), expected)| digest != *expected);
                    wrong.extend(differs.map(|((page, _), _)| (chunk.part, page)));
                }
            }
            Ok(())
        })?;
        Ok(wrong)
    }
}

impl Returning<'_> {
    fn pieces(&self, chunk: usize) -> impl Iterator<Item = Piece> + '_ {
        self.runs.iter().filter_map(move |run| {
            let (memory, at, form) = run.from.clone()?;
            let (reservation, offset) = (self.part.reservation.clone(), run.offset);
            Some(Piece { chunk, reservation, offset, memory, at, form })
        })
    }
}

impl Run {
    fn new(pages: &[(u64, Saved)], backups: &Backups) -> Run {
        let (offset, saved) = pages[0];
        let from = match saved.location {
            BackupLocation::Zero => None,
            BackupLocation::Page(page) => {
                let form = PieceForm::new(page.form, pages.len());
                Some((backups.memory(page.slab).clone(), page.offset(), form))
            }
        };
        Run { offset, size: Bytes(pages.len() as u64 * PAGE), from }
    }
}

// Whether two neighbouring pages come from neighbouring backup pages, and in one piece.
fn follows((_, one): &(u64, Saved), (at, next): &(u64, Saved)) -> bool {
    match (one.location, next.location) {
        (BackupLocation::Zero, BackupLocation::Zero) => true,
        (BackupLocation::Page(one), BackupLocation::Page(next)) => {
            one.slab == next.slab && one.page + 1 == next.page && !at.is_multiple_of(PIECE)
        }
        _ => false,
    }
}
