//! Saving: pages on their way to the host, and the chunks that they leave behind.
//!
//! A chunk is given back as soon as every page of it has arrived, so that the driver's part is done
//! while the link is busy. Memory whose content may be lost goes last, while the last copies run.

use std::ops::Range;
use std::sync::PoisonError;

use crate::Result;
use crate::backup::Backups;
use crate::carry::Carriers;
use crate::changes::{self, Changed};
use crate::feed::Feed;
use crate::handover::Way;
use crate::limit::Limit;
use crate::piece::Piece;
use crate::retry::unmap;
use crate::sleep_part::{HeldChunks, SleepPart};
use crate::sync::{self, Mutex};
use crate::turn_step::TurnStep;

/// Memory that may be lost is given up when no more than this part of the copies is left: late, in
/// case one fails, and early enough that the driver's part is done before the last one.
const LAST_PART: usize = 4;

/// Pages on their way to the host.
pub(crate) struct Saving<'a> {
    pub(crate) changed: Vec<Changed>,
    pub(crate) carriers: &'a Carriers,
    /// The rooms whose content is saved.
    pub(crate) parts: &'a [&'a SleepPart],
    /// The rooms whose content may be lost.
    pub(crate) lost: &'a [&'a SleepPart],
    pub(crate) limit: Limit<'a>,
}

/// A chunk of a part, in the order in which they are numbered for the feed.
struct Numbered<'a> {
    part: &'a SleepPart,
    range: &'a Range<u64>,
}

impl Numbered<'_> {
    fn holds(&self, page: &Changed) -> bool {
        self.part.room == page.room && self.range.contains(&page.offset)
    }
}

impl Saving<'_> {
    /// Copies what changed and gives each chunk back once it is saved; then what may be lost.
    pub(crate) fn carry(&self, backups: &mut Backups) -> Result<()> {
        let chunks: Vec<Numbered<'_>> = self.numbered();
        let runs = self.runs(&chunks);
        let mut pieces_of = vec![0; chunks.len()];
        for (chunk, _) in &runs {
            pieces_of[*chunk] += 1;
        }
        let pieces: Vec<Piece> = runs
            .iter()
            .enumerate()
            .map(|(number, (chunk, run))| {
                let reservation = &chunks[*chunk].part.reservation;
                changes::piece(number, run, *chunk, reservation, backups)
            })
            .collect();
        let feed = Feed::new(Way::Out, chunks.len(), &pieces);
        let arrived =
            Mutex::new(Arrived { left: pieces_of.clone(), runs: vec![false; runs.len()] });
        let lock = || sync::lock(&arrived);
        let done = |piece: &Piece| {
            let is_last = lock().count(piece);
            let Numbered { part, range } = &chunks[piece.chunk];
            if is_last {
                drop(unmap(&part.reservation, range)?);
            }
            Ok(())
        };
        let mut held = HeldChunks::default();
        let mut meanwhile = || {
            let idle = chunks.iter().zip(&pieces_of).filter(|(_, pieces)| **pieces == 0);
            for (Numbered { part, range }, _) in idle {
                self.limit.ask(TurnStep::CopyingOut, || feed.progress())?;
                drop(unmap(&part.reservation, range)?);
            }
            let is_late = |left: &[usize]| left.iter().sum::<usize>() * LAST_PART <= runs.len();
            if feed.handover.wait_until(|left| is_late(left).then_some(())).is_some() {
                held = HeldChunks::unmap(self.lost.iter().copied(), self.limit)?;
                // Without a limit only a failure could stop what is left.
                if self.limit.is_none() {
                    drop(std::mem::take(&mut held));
                }
            }
            Ok(())
        };
        let outcome = if pieces.is_empty() {
            meanwhile()
        } else {
            feed.add(pieces);
            self.carriers.carry(&feed, self.limit, &done, meanwhile)
        };
        // Where a thread panicked, the panic has gone past here.
        let arrived = arrived.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((_, run), is_there) in runs.iter().zip(arrived.runs) {
            if is_there {
                changes::confirm(backups, run);
            } else {
                changes::give_up(backups, run);
            }
        }
        if outcome.is_err() {
            held.put_back();
        }
        outcome
    }

    fn numbered(&self) -> Vec<Numbered<'_>> {
        let of_part = |part: &&'_ SleepPart| part.chunks.len();
        let mut numbered = Vec::with_capacity(self.parts.iter().map(of_part).sum());
        for part in self.parts {
            numbered.extend(part.chunks.iter().map(|range| Numbered { part, range }));
        }
        numbered
    }

    // Neighbouring pages that changed, each run within one chunk, with the chunk's number.
    fn runs<'b>(&'b self, chunks: &[Numbered<'_>]) -> Vec<(usize, &'b [Changed])> {
        let mut runs = Vec::new();
        let mut chunk = 0;
        for run in self.changed.chunk_by(changes::neighbours) {
            let mut rest = run;
            while let Some(first) = rest.first() {
                while !chunks[chunk].holds(first) {
                    chunk += 1;
                }
                let inside = rest.partition_point(|page| chunks[chunk].holds(page));
                runs.push((chunk, &rest[..inside]));
                rest = &rest[inside..];
            }
        }
        runs
    }
}

/// The pieces that have arrived at the host.
struct Arrived {
    /// The number of pieces of each chunk that have not.
    left: Vec<usize>,
    runs: Vec<bool>,
}

impl Arrived {
    /// Counts a piece; returns whether it was the last of its chunk.
    fn count(&mut self, piece: &Piece) -> bool {
        self.runs[piece.number] = true;
        self.left[piece.chunk] -= 1;
        self.left[piece.chunk] == 0
    }
}
