//! Wake: memory comes back under the addresses that stayed, with its content, checked.
//!
//! The room is checked first. Then memory is made, mapped and opened chunk by chunk, and the copies
//! into each are given at once, so that the link is never idle; behind the copies the digest of every
//! page is taken and held against the backup's. Until the last one is right the tags are not awake,
//! and whatever fails before that takes away what was mapped and leaves everything asleep.

use std::ops::Range;

use lowtide_device::digest::Keys;
use lowtide_device::{Bytes, Mark, Reservation, Stream, holders};
use serde::Serialize;

use crate::backup::{Backups, PAGE, Place, Saved};
use crate::books::Books;
use crate::pressure::{Answer, Pressure, ROUNDS_MOST};
use crate::tags::{Phase, Scope, SleepPolicy};
use crate::turn::Turn;
use crate::{Error, Pool, Result};

/// What a wake did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WakeReport {
    /// Tags that woke.
    pub tags: usize,
    /// Taken from the device.
    #[serde(rename = "mapped_bytes")]
    pub mapped: Bytes,
    /// Copied from the host and checked.
    #[serde(rename = "copied_bytes")]
    pub copied: Bytes,
    /// Pages that had to be copied twice.
    pub copied_again: usize,
}

/// A room that wakes.
struct Part {
    turning: usize,
    room: usize,
    restores: bool,
    reservation: Reservation,
    /// Memory that a sleep could not take away: it is in the way.
    stuck: Vec<Range<u64>>,
    /// What is to be made.
    chunks: Vec<Range<u64>>,
}

/// A chunk whose copies were given, up to a mark.
struct Given<'a> {
    part: &'a Part,
    chunk: Range<u64>,
    mark: Mark,
}

impl Pool {
    /// Wakes tags: the same bytes at the same addresses, each page checked. Tags that are awake
    /// stay so. Memory of `Discard` tags comes back with undefined content.
    ///
    /// # Errors
    /// Whatever was refused, everything is asleep as before and nothing is lost: try again.
    /// [`Error::NoRoom`] says who has the memory, [`Error::Corrupt`] which page is not what it was.
    pub fn wake(&self, scope: Scope<'_>) -> Result<WakeReport> {
        let Some(mut turn) = self.begin_turn(scope, Phase::Asleep)? else {
            return Ok(WakeReport::default());
        };
        let parts = self.books().plan_wake(&turn, self.shared.policy.wake_chunk_most.0);
        let outcome = self.apply_wake(&mut turn, &parts);
        if outcome.is_err() {
            parts.iter().for_each(take_away);
        }
        self.books().commit_wake(&mut turn, &parts, outcome.is_ok());
        if outcome.is_ok() && !self.shared.policy.keep_backups {
            parts.iter().for_each(|part| turn.backups.forget(part.room));
            turn.backups.shrink();
        }
        let tags = turn.tags.len();
        drop(turn);
        let report = WakeReport { tags, ..outcome? };
        tracing::info!(?report, "awake");
        Ok(report)
    }

    fn apply_wake(&self, turn: &mut Turn<'_>, parts: &[Part]) -> Result<WakeReport> {
        for part in parts {
            for range in &part.stuck {
                let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
                part.reservation.unmap(at, size).map_err(lowtide_device::Error::from)?;
            }
        }
        let needed =
            parts.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.end - chunk.start);
        let needed = Bytes(needed.sum());
        self.make_room(needed)?;
        let device = &self.shared.device;
        let mut report = WakeReport { mapped: needed, ..WakeReport::default() };
        // What has content first: the rest is made while the copies run.
        let (restored, empty): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.restores);
        let mut given = Vec::new();
        let streams = match restored.iter().any(|part| !part.chunks.is_empty()) {
            true => Some((device.stream()?, device.stream()?)),
            false => None,
        };
        for part in &restored {
            for chunk in &part.chunks {
                self.make(part, chunk).map_err(|error| self.with_holders(error, needed))?;
                let (stream, _) = streams.as_ref().expect("made for these");
                report.copied += copy_in(stream, part, chunk, &mut turn.backups)?;
                given.push(Given { part, chunk: chunk.clone(), mark: stream.mark()? });
            }
        }
        for part in &empty {
            for chunk in &part.chunks {
                self.make(part, chunk).map_err(|error| self.with_holders(error, needed))?;
            }
        }
        if let Some((copies, checks)) = &streams {
            let wrong = check(copies, checks, &given, &mut turn.backups)?;
            report.copied_again = wrong.len();
            for (part, offset) in wrong {
                self.copy_again(copies, part, offset, &mut turn.backups)?;
            }
        }
        Ok(report)
    }

    fn make(&self, part: &Part, chunk: &Range<u64>) -> lowtide_device::Result<()> {
        let (at, size) = (Bytes(chunk.start), Bytes(chunk.end - chunk.start));
        part.reservation.map(at, self.shared.device.create(size)?)?;
        part.reservation.open(at, size)
    }

    // What is cached elsewhere goes first, then everybody is asked.
    fn make_room(&self, needed: Bytes) -> Result<()> {
        for round in 0..=ROUNDS_MOST {
            let free = self.shared.device.usage()?.free;
            if free >= needed {
                return Ok(());
            }
            if round == 0 {
                self.trim(Bytes::ZERO)?;
                continue;
            }
            let pressure = Pressure { requested: needed, free, round: round - 1 };
            if self.shared.callbacks.ask(&pressure) == Answer::Nothing {
                return Err(self.no_room(needed, free));
            }
        }
        let free = self.shared.device.usage()?.free;
        Err(self.no_room(needed, free))
    }

    fn no_room(&self, needed: Bytes, free: Bytes) -> Error {
        let device = &self.shared.device;
        let holders =
            holders::of(device).map_or_else(|error| error.to_string(), |found| found.to_string());
        Error::NoRoom { device: device.info().id, needed, free, holders }
    }

    fn with_holders(&self, error: lowtide_device::Error, needed: Bytes) -> Error {
        match error {
            lowtide_device::Error::OutOfMemory { free, .. } => self.no_room(needed, free),
            other => other.into(),
        }
    }

    // A page that was not right after its copy gets a second one, alone.
    fn copy_again(
        &self,
        stream: &Stream,
        part: &Part,
        offset: u64,
        backups: &mut Backups,
    ) -> Result<()> {
        let page = offset..offset + PAGE;
        copy_in(stream, part, &page, backups)?;
        let keys = Keys::of_this_process();
        let digests =
            stream.digest((&part.reservation, Bytes(offset)), Bytes(PAGE), keys)?.wait()?;
        if digests[0] == backups.pages(part.room)[&offset].digest {
            tracing::warn!(offset, "a page was right only after a second copy");
            return Ok(());
        }
        let books = self.books();
        let base = part.reservation.address();
        let block = books.rooms[part.room].arena.live_block_in(&page).unwrap_or(offset);
        Err(Error::Corrupt {
            tag: books.tags[crate::books::tag_of(part.room)].name.to_string(),
            block: base.plus(Bytes(block)),
            page: base.plus(Bytes(offset)),
        })
    }
}

// Gives the copies into a chunk to the stream: neighbours at once.
fn copy_in(
    stream: &Stream,
    part: &Part,
    chunk: &Range<u64>,
    backups: &mut Backups,
) -> Result<Bytes> {
    let pages: Vec<(u64, Saved)> =
        backups.pages(part.room).range(chunk.clone()).map(|(at, saved)| (*at, *saved)).collect();
    assert_eq!(pages.len() as u64 * PAGE, chunk.end - chunk.start, "every page was saved");
    let mut copied = Bytes::ZERO;
    let follows = |(at, a): &(u64, Saved), (next, b): &(u64, Saved)| {
        at + PAGE == *next
            && match (a.place, b.place) {
                (Place::Zero, Place::Zero) => true,
                (Place::Slot(a), Place::Slot(b)) => a.slab == b.slab && a.page + 1 == b.page,
                _ => false,
            }
    };
    for run in pages.chunk_by(follows) {
        let (offset, size) = (Bytes(run[0].0), Bytes(run.len() as u64 * PAGE));
        let to = (&part.reservation, offset);
        match run[0].1.place {
            Place::Zero => stream.fill(to, 0, size)?,
            Place::Slot(slot) => {
                let memory = backups.memory(slot.slab).expect("a slab in use is ready");
                stream.copy_in((memory, slot.offset()), to, size)?;
                copied += size;
            }
        }
    }
    Ok(copied)
}

// The digests of a chunk are taken when its copies are done, while the next chunk's run.
fn check<'a>(
    copies: &Stream,
    checks: &Stream,
    given: &[Given<'a>],
    backups: &mut Backups,
) -> Result<Vec<(&'a Part, u64)>> {
    let keys = Keys::of_this_process();
    let mut pending = Vec::with_capacity(given.len());
    for Given { part, chunk, mark } in given {
        copies.wait(mark)?;
        let (at, size) = (Bytes(chunk.start), Bytes(chunk.end - chunk.start));
        pending.push((*part, chunk, checks.digest((&part.reservation, at), size, keys)?));
    }
    let mut wrong = Vec::new();
    for (part, chunk, pending) in pending {
        let digests = pending.wait()?;
        for (offset, digest) in chunk.clone().step_by(PAGE as usize).zip(digests) {
            if backups.pages(part.room)[&offset].digest != digest {
                wrong.push((part, offset));
            }
        }
    }
    Ok(wrong)
}

// Takes away what a wake mapped before it failed. What stays is recorded and tried again.
fn take_away(part: &Part) {
    for mapping in part.reservation.mappings() {
        let (at, size) = (mapping.range.start, mapping.range.end - mapping.range.start);
        let unmapped = part.reservation.unmap(Bytes(at), Bytes(size));
        if let Err(refused) = unmapped.or_else(|_| part.reservation.unmap(Bytes(at), Bytes(size))) {
            tracing::error!(error = %refused.error, "memory of a failed wake stays for now");
        }
    }
}

impl Books {
    fn plan_wake(&self, turn: &Turn<'_>, chunk_most: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        for (turning, tag) in turn.tags.iter().enumerate() {
            for room in tag.rooms() {
                let arena = &self.rooms[room].arena;
                let cut = |run: Range<u64>| {
                    let starts = run.clone().step_by(chunk_most.max(PAGE) as usize);
                    starts.map(move |start| start..run.end.min(start + chunk_most.max(PAGE)))
                };
                parts.push(Part {
                    turning,
                    room,
                    restores: tag.policy == SleepPolicy::Offload,
                    reservation: arena.reservation.clone(),
                    stuck: arena.chunks(),
                    chunks: arena.live_pages().into_iter().flat_map(cut).collect(),
                });
            }
        }
        parts
    }

    fn commit_wake(&mut self, turn: &mut Turn<'_>, parts: &[Part], woke: bool) {
        for part in parts {
            let arena = &mut self.rooms[part.room].arena;
            if woke {
                arena.wake_up(&part.chunks);
                turn.tags[part.turning].becomes = Phase::Awake;
            } else {
                let stuck = part.reservation.mappings().into_iter().map(|mapping| mapping.range);
                arena.fall_asleep(&stuck.collect::<Vec<_>>());
            }
        }
    }
}
