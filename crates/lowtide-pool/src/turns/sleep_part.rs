//! A room that falls asleep: its chunks, and how they leave their addresses.

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Bytes, Chunk, Reservation};

use crate::Result;
use crate::copy::retry::{twice, unmap};
use crate::lock::limit::{Limit, Progress};
use crate::state::room::RoomId;
use crate::turn_step::TurnStep;

/// A room that falls asleep.
pub(crate) struct SleepPart {
    /// Which of the turn's tags it belongs to.
    pub(crate) turning: usize,
    pub(crate) room: RoomId,
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
