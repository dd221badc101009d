//! Sleep: content leaves the device, addresses stay.
//!
//! Plan under the lock (which chunks, which pages), apply without it, commit. Threads carry what
//! changed to the host, and a chunk is given back as soon as every page of it is saved, so that the
//! driver's part is done while the link is busy. Memory whose content may be lost goes last, while
//! the last copies run. At every moment a page is on the device or it is saved; so whatever fails,
//! what has left is brought back, and where even that fails the tag is asleep with nothing lost.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use lowtide_device::{Bytes, Chunk, Mapping, Reservation};
use serde::Serialize;

use crate::backup::Backups;
use crate::books::Books;
use crate::carry::Carriers;
use crate::feed::Feed;
use crate::piece::{Piece, Way};
use crate::saving::{self, Changed, Tally, ToSave};
use crate::tags::{Phase, Scope, SleepPolicy, Tag};
use crate::turn::{Turn, twice, unmap};
use crate::{Pool, Result};

/// Memory that may be lost is given up when no more than this part of the copies is left: late, in
/// case one fails, and early enough that the driver's part is done before the last one.
const LAST_PART: usize = 4;

/// What a sleep did. Whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SleepReport {
    /// Tags that fell asleep.
    pub tags: usize,
    /// Copied to the host.
    #[serde(rename = "copied_bytes")]
    pub copied: Bytes,
    /// Saved already: not copied.
    #[serde(rename = "unchanged_bytes")]
    pub unchanged: Bytes,
    /// All zeros: not stored.
    #[serde(rename = "zero_bytes")]
    pub zero: Bytes,
    /// Given back to the device.
    #[serde(rename = "freed_bytes")]
    pub freed: Bytes,
}

/// A room that falls asleep.
struct Part {
    /// Which of the turn's tags it belongs to.
    turning: usize,
    room: usize,
    saves: bool,
    reservation: Reservation,
    chunks: Vec<Range<u64>>,
    /// With live bytes on them.
    pages: Vec<Range<u64>>,
}

/// A chunk of a part, in the order in which they are numbered for the feed.
struct Numbered<'a> {
    part: &'a Part,
    range: &'a Range<u64>,
}

impl Pool {
    /// Puts tags to sleep: their memory leaves the device, their addresses stay. What is `Offload`
    /// is saved to the host, what is `Discard` is lost, what is `Keep` stays awake; tags that are
    /// asleep already stay so. Waits for all work on the device; nobody may give it work on these
    /// blocks until they wake, and a [`lowtide_device::Stream`] that was is to be synchronised (or
    /// watched by the pool's fence). On CUDA that wait ends any graph capture in the same context.
    ///
    /// # Errors
    /// Whatever was refused, everything is brought back as it was before: awake, data intact. Where
    /// even that is refused, the tag is asleep and its data is saved ([`Pool::phase`] tells); so is
    /// what is `Discard`, once it was given up.
    pub fn sleep(&self, scope: Scope<'_>) -> Result<SleepReport> {
        let unfinished = self.books().unfinished(scope)?;
        if !unfinished.is_empty() {
            self.wake(Scope::Tags(&unfinished))?;
        }
        let Some(mut turn) = self.begin_turn(scope, Phase::Awake)? else {
            return Ok(SleepReport::default());
        };
        self.settle_streams(true)?;
        self.shared.device.synchronize()?;
        let parts = self.books().plan_sleep(&turn);
        let outcome = self.apply_sleep(&mut turn, &parts);
        self.books().commit_sleep(&mut turn, &parts, outcome.is_ok());
        if outcome.is_err() {
            // What its streams were given keeps pages pinned until they are waited for.
            let settled = turn.carriers.as_ref().map_or(Ok(()), Carriers::settle);
            if let Err(error) = settled {
                tracing::warn!(%error, "work of a failed sleep may keep pages pinned for now");
            }
            if let Err(error) = self.bring_back(&mut turn) {
                tracing::error!(%error, "a sleep failed, and what has left could not be brought back");
            }
        }
        let tags = turn.tags.len();
        drop(turn);
        let report = SleepReport { tags, ..outcome? };
        tracing::info!(?report, "asleep");
        Ok(report)
    }

    fn apply_sleep(&self, turn: &mut Turn<'_>, parts: &[Part]) -> Result<SleepReport> {
        let (saved, lost): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.saves);
        let freed = parts.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.end - chunk.start);
        let freed = Bytes(freed.sum());
        let to_save: Vec<ToSave<'_>> = saved
            .iter()
            .map(|Part { room, reservation, pages, .. }| ToSave { room: *room, reservation, pages })
            .collect();
        let mut tally = Tally::default();
        if saved.iter().any(|part| !part.pages.is_empty()) {
            let (device, policy) = (&self.shared.device, &self.shared.policy);
            let carriers = Carriers::ready(&mut turn.carriers, device)?;
            let backups = &mut turn.backups;
            let others = self.books().awake_rooms();
            let (found, changed) =
                saving::plan(device, &carriers.checks, policy, backups, &to_save, &others)?;
            tally = found;
            let saving = Saving { changed, carriers, parts: &saved };
            saving.carry(backups, || unmap_all(lost.iter().copied()))?;
        } else {
            for part in &saved {
                turn.backups.forget(part.room);
            }
            unmap_all(saved.into_iter().chain(lost))?;
        }
        turn.backups.shrink();
        let Tally { copied, unchanged, zero } = tally;
        Ok(SleepReport { tags: 0, copied, unchanged, zero, freed })
    }
}

/// Pages on their way to the host, and the chunks they leave behind.
struct Saving<'a> {
    changed: Vec<Changed>,
    carriers: &'a Carriers,
    parts: &'a [&'a Part],
}

impl Saving<'_> {
    // Copies what changed and gives each chunk back once it is saved; then what may be lost.
    fn carry(
        self,
        backups: &mut Backups,
        give_up_the_rest: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let chunks: Vec<Numbered<'_>> =
            self.parts.iter().flat_map(|part| part.numbered()).collect();
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
                saving::piece(number, run, *chunk, reservation, backups)
            })
            .collect();
        let feed = Feed::new(Way::Out, chunks.len(), &pieces);
        let arrived =
            Mutex::new(Arrived { left: pieces_of.clone(), runs: vec![false; runs.len()] });
        let lock = || arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let done = |piece: &Piece| {
            let is_last = lock().count(piece);
            let Numbered { part, range } = &chunks[piece.chunk];
            if is_last { unmap(&part.reservation, range).map(drop) } else { Ok(()) }
        };
        let meanwhile = || {
            let idle = chunks.iter().zip(&pieces_of).filter(|(_, pieces)| **pieces == 0);
            for (Numbered { part, range }, _) in idle {
                drop(unmap(&part.reservation, range)?);
            }
            let is_late = |left: &[usize]| left.iter().sum::<usize>() * LAST_PART <= runs.len();
            match feed.wait_until(|left| is_late(left).then_some(())) {
                Some(()) => give_up_the_rest(),
                None => Ok(()), // who failed says why
            }
        };
        let outcome = if pieces.is_empty() {
            meanwhile()
        } else {
            feed.add(pieces);
            self.carriers.carry(&feed, &done, meanwhile)
        };
        let arrived = arrived.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((_, run), is_there) in runs.iter().zip(arrived.runs) {
            if is_there {
                saving::confirm(backups, run);
            } else {
                saving::give_up(backups, run);
            }
        }
        outcome
    }

    // Neighbouring pages that changed, each run within one chunk, with the chunk's number.
    fn runs<'b>(&'b self, chunks: &[Numbered<'_>]) -> Vec<(usize, &'b [Changed])> {
        let mut runs = Vec::new();
        let mut chunk = 0;
        for run in self.changed.chunk_by(saving::neighbours) {
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

impl Part {
    fn numbered(&self) -> impl Iterator<Item = Numbered<'_>> {
        self.chunks.iter().map(|range| Numbered { part: self, range })
    }
}

impl Numbered<'_> {
    fn holds(&self, page: &Changed) -> bool {
        self.part.room == page.room && self.range.contains(&page.offset)
    }
}

/// What has arrived at the host.
struct Arrived {
    /// Pieces of each chunk that have not.
    left: Vec<usize>,
    runs: Vec<bool>,
}

impl Arrived {
    /// Whether this was the last piece of its chunk.
    fn count(&mut self, piece: &Piece) -> bool {
        self.runs[piece.number] = true;
        self.left[piece.chunk] -= 1;
        self.left[piece.chunk] == 0
    }
}

// All or nothing: chunks are held until the last one is unmapped, and mapped again where one stays.
fn unmap_all<'a>(parts: impl Iterator<Item = &'a Part>) -> Result<()> {
    let mut held: Vec<(&Reservation, &Range<u64>, Chunk)> = Vec::new();
    for part in parts {
        for range in &part.chunks {
            match unmap(&part.reservation, range) {
                Ok(chunk) => held.push((&part.reservation, range, chunk)),
                Err(error) => {
                    for (reservation, range, chunk) in held {
                        put_back(reservation, range, chunk);
                    }
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

// What cannot be put back is missing when the turn is recorded: its tag is asleep then.
fn put_back(reservation: &Reservation, range: &Range<u64>, chunk: Chunk) {
    let (at, size) = (Bytes(range.start), chunk.size());
    let mapped = reservation.map(at, chunk).or_else(|refused| reservation.map(at, refused.chunk));
    let opened = mapped
        .map_err(lowtide_device::Error::from)
        .and_then(|()| twice(|| reservation.open(at, size)));
    if let Err(error) = opened {
        tracing::error!(%error, "memory could not be put back; its tag is asleep");
    }
}

impl Books {
    // Tags that are asleep but still have memory on the device, which could not be taken away.
    fn unfinished(&self, scope: Scope<'_>) -> Result<Vec<Tag>> {
        let mut tags = self.tags.of(scope)?;
        tags.retain(|tag| {
            let mapped = |room: usize| self.rooms[room].arena.mapped() > 0;
            self.tags[*tag].phase == Phase::Asleep && crate::books::rooms_of(*tag).any(mapped)
        });
        Ok(tags)
    }

    fn plan_sleep(&self, turn: &Turn<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        for (turning, tag) in turn.tags.iter().enumerate() {
            for room in tag.rooms() {
                let arena = &self.rooms[room].arena;
                parts.push(Part {
                    turning,
                    room,
                    saves: tag.policy == SleepPolicy::Offload,
                    reservation: arena.reservation.clone(),
                    chunks: arena.chunks(),
                    pages: arena.live_pages(),
                });
            }
        }
        parts
    }

    // What is mapped is what the device layer says, whatever went wrong: where a sleep failed, a tag
    // that still has all its memory is awake, and any other is asleep.
    fn commit_sleep(&mut self, turn: &mut Turn<'_>, parts: &[Part], slept: bool) {
        let is_whole = |part: &Part| {
            let mappings = part.reservation.mappings();
            let ranges = mappings.iter().map(|mapping| &mapping.range);
            mappings.iter().all(|mapping| mapping.is_open) && ranges.eq(part.chunks.iter())
        };
        for (index, turning) in turn.tags.iter_mut().enumerate() {
            let own = || parts.iter().filter(|part| part.turning == index);
            if !slept && own().all(is_whole) {
                continue;
            }
            turning.becomes = Phase::Asleep;
            for part in own() {
                let still = part.reservation.mappings().into_iter();
                let still: Vec<_> = still.map(|Mapping { range, .. }| range).collect();
                self.rooms[part.room].arena.fall_asleep(&still, &[]);
            }
        }
    }
}
