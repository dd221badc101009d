//! Sleep: content leaves the device, addresses stay.
//!
//! Plan under the lock (which chunks, which pages), apply without it, commit. Until every copy has
//! been accepted by the device nothing is taken away. Then memory whose content may be lost is given
//! back while the copies run; the rest is unmapped once they are done, and given back only when all
//! of it is unmapped: a refusal before that is undone by mapping the same chunks again.

use std::ops::Range;

use lowtide_device::{Bytes, Chunk, Reservation};
use serde::Serialize;

use crate::books::Books;
use crate::pool::Shared;
use crate::saving::{Saving, Tally, ToSave};
use crate::tags::{Phase, Scope, SleepPolicy};
use crate::turn::Turn;
use crate::{Pool, Result};

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

impl Pool {
    /// Puts tags to sleep: their memory leaves the device, their addresses stay. What is `Offload`
    /// is saved to the host, what is `Discard` is lost, what is `Keep` stays awake; tags
    /// that are asleep already stay so. Waits for all work on the device; nobody may give it work on these
    /// blocks until they wake.
    ///
    /// # Errors
    /// Whatever was refused, everything is as it was before: awake, data intact. (One exception:
    /// where the device refuses twice to wait for copies it accepted or to unmap, what is `Discard`
    /// is asleep already.)
    pub fn sleep(&self, scope: Scope<'_>) -> Result<SleepReport> {
        let Some(mut turn) = self.begin_turn(scope, Phase::Awake)? else {
            return Ok(SleepReport::default());
        };
        self.settle_streams(true)?;
        self.shared.device.synchronize()?;
        let parts = self.books().plan_sleep(&turn);
        let outcome = self.apply_sleep(&mut turn, &parts);
        self.books().commit_sleep(&mut turn, &parts, outcome.is_ok());
        let tags = turn.tags.len();
        drop(turn);
        let report = SleepReport { tags, ..outcome? };
        tracing::info!(?report, "asleep");
        Ok(report)
    }

    fn apply_sleep(&self, turn: &mut Turn<'_>, parts: &[Part]) -> Result<SleepReport> {
        let to_save: Vec<ToSave<'_>> = parts
            .iter()
            .filter(|part| part.saves)
            .map(|Part { room, reservation, pages, .. }| ToSave { room: *room, reservation, pages })
            .collect();
        let Shared { device, policy, .. } = &*self.shared;
        let saving = Saving::begin(device, policy, &mut turn.backups, &to_save)?;
        let Tally { copied, unchanged, zero } = saving.tally;
        // While the copies run.
        let lost = unmap_all(parts.iter().filter(|part| !part.saves));
        saving.finish(&mut turn.backups)?;
        let freed = lost? + unmap_all(parts.iter().filter(|part| part.saves))?;
        turn.backups.shrink();
        Ok(SleepReport { tags: 0, copied, unchanged, zero, freed })
    }
}

// All or nothing: chunks are held until the last one is unmapped, and mapped again where one stays.
fn unmap_all<'a>(parts: impl Iterator<Item = &'a Part>) -> Result<Bytes> {
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
    Ok(held.iter().map(|(_, _, chunk)| chunk.size()).sum())
}

// One refusal says little: the second counts.
fn unmap(reservation: &Reservation, range: &Range<u64>) -> lowtide_device::Result<Chunk> {
    let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
    let taken = reservation.unmap(at, size).or_else(|_| reservation.unmap(at, size))?;
    Ok(taken.into_iter().next().expect("one chunk is mapped there").1)
}

// What cannot be put back is missing when the turn is recorded: its tag is asleep then.
fn put_back(reservation: &Reservation, range: &Range<u64>, chunk: Chunk) {
    let (at, size) = (Bytes(range.start), chunk.size());
    let mapped = reservation.map(at, chunk).or_else(|refused| reservation.map(at, refused.chunk));
    let opened = mapped
        .map_err(lowtide_device::Error::from)
        .and_then(|()| reservation.open(at, size).or_else(|_| reservation.open(at, size)));
    if let Err(error) = opened {
        tracing::error!(%error, "memory could not be put back; its tag is asleep");
    }
}

impl Books {
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

    // What is mapped is what the device layer says, whatever went wrong: a tag whose memory is all
    // there is awake, any other is asleep.
    fn commit_sleep(&mut self, turn: &mut Turn<'_>, parts: &[Part], slept: bool) {
        let whole = |part: &&Part| {
            let mappings = part.reservation.mappings();
            mappings.iter().all(|mapping| mapping.is_open)
                && mappings.into_iter().map(|mapping| mapping.range).eq(part.chunks.iter().cloned())
        };
        for (index, turning) in turn.tags.iter_mut().enumerate() {
            let own = || parts.iter().filter(|part| part.turning == index);
            if !slept && own().all(|part| whole(&part)) {
                continue;
            }
            turning.becomes = Phase::Asleep;
            for part in own() {
                let still: Vec<_> =
                    part.reservation.mappings().into_iter().map(|mapping| mapping.range).collect();
                self.rooms[part.room].arena.fall_asleep(&still);
            }
        }
    }
}
