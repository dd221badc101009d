//! Chunks that leave the device, and the second digest of their pages.
//!
//! A sleep decides by digests what it copies. Until a chunk is gone, a stray write can still change a
//! page of it: before the copy, during it, or behind it. So every page of a chunk is digested once
//! more, right before the chunk goes. The chunk goes only if all digests are still the same.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, PendingDigests, Result as DeviceResult, Stream};

use crate::Result;
use crate::backups::changed::Changed;
use crate::backups::{BackupLocation, BackupPage, Backups};
use crate::copy::transfer::Transfer;
use crate::policy::PAGE;
use crate::state::arenas::ArenaId;
use crate::turns::parts::SleepPart;

/// A chunk whose content is saved.
pub(crate) struct DepartingChunk<'a> {
    pub(crate) part: &'a SleepPart,
    pub(crate) range: &'a Range<u64>,
    /// The pages with live bytes on them, each with its last digest.
    pub(crate) pages: Vec<(u64, Digest)>,
}

/// A page that differs from its saved content: its index in its chunk, and its digest now.
pub(crate) type Wrong = (usize, Digest);

impl<'a> DepartingChunk<'a> {
    /// Lists all chunks of these parts, whose pages had these digests.
    pub(crate) fn all(
        parts: &[&'a SleepPart],
        digests: Vec<Vec<Digest>>,
    ) -> Vec<DepartingChunk<'a>> {
        let mut all = Vec::with_capacity(parts.iter().map(|part| part.chunks.len()).sum());
        for (part, digests) in parts.iter().zip(digests) {
            let offsets = part.pages.iter().flat_map(|run| run.clone().step_by(PAGE as usize));
            let mut pages = offsets.zip(digests).peekable();
            for range in &part.chunks {
                let mut own = Vec::new();
                while let Some(page) = pages.next_if(|(offset, _)| *offset < range.end) {
                    own.push(page);
                }
                all.push(DepartingChunk { part, range, pages: own });
            }
        }
        all
    }

    pub(crate) fn holds(&self, page: &Changed) -> bool {
        self.part.arena_id == page.arena_id && self.range.contains(&page.offset)
    }

    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let runs = self.pages.chunk_by(|(one, _), (next, _)| one + PAGE == *next);
        runs.map(|run| run[0].0..run[run.len() - 1].0 + PAGE)
    }
}

/// The second digest of chunks.
pub(crate) struct SecondDigest<'a> {
    pub(crate) stream: &'a Stream,
    /// Set where backup pages are digested, too.
    pub(crate) backups: Option<CheckedBackups<'a>>,
    /// Knows what unpacking the packed pages gives.
    pub(crate) transfer: &'a Transfer,
}

/// Backups, and the backup pages that were just written and are not recorded yet.
pub(crate) struct CheckedBackups<'a> {
    pub(crate) backups: &'a Backups,
    pub(crate) copied: BTreeMap<(ArenaId, u64), Option<BackupPage>>,
}

impl<'a> SecondDigest<'a> {
    /// Has the digests of these chunks computed, and does not wait for them. The digests of all chunks
    /// are computed together, because many pages keep a device busy and few do not.
    pub(crate) fn begin<'b>(
        &'b self,
        chunks: Vec<&'b DepartingChunk<'b>>,
    ) -> PendingSecondDigest<'b> {
        let pending = self.launch(&chunks);
        PendingSecondDigest { second: self, chunks, pending }
    }

    // One piece of work for each arena.
    fn launch(&self, chunks: &[&DepartingChunk<'_>]) -> DeviceResult<Vec<PendingDigests<'a>>> {
        let keys = Keys::of_this_process();
        let arenas = chunks.chunk_by(|one, next| one.part.arena_id == next.part.arena_id);
        let launch = |of_arena: &[&DepartingChunk<'_>]| {
            let runs: Vec<_> = of_arena.iter().flat_map(|chunk| chunk.runs()).collect();
            self.stream.digest_ranges(&of_arena[0].part.reservation, &runs, keys)
        };
        arenas.map(launch).collect()
    }
}

/// A second digest that is being computed.
#[must_use]
pub(crate) struct PendingSecondDigest<'a> {
    second: &'a SecondDigest<'a>,
    chunks: Vec<&'a DepartingChunk<'a>>,
    pending: DeviceResult<Vec<PendingDigests<'a>>>,
}

impl PendingSecondDigest<'_> {
    /// Waits for the digests and returns for each chunk the pages that differ from their saved content.
    pub(crate) fn end(self) -> Result<Vec<Vec<Wrong>>> {
        let PendingSecondDigest { second, chunks, pending } = self;
        // Memory has left the device by now, and one refusal says little.
        let digests = pending.and_then(read).or_else(|_| second.launch(&chunks).and_then(read))?;
        let (mut digests, mut all) = (digests.into_iter(), Vec::with_capacity(chunks.len()));
        for chunk in &chunks {
            let mut wrong = Vec::new();
            for (index, ((offset, saved), now)) in chunk.pages.iter().zip(&mut digests).enumerate()
            {
                let page = chunk.part.reservation.address().plus(Bytes(*offset));
                let unpacks_wrongly = now == *saved && second.transfer.unpacks_wrongly(page, now);
                if unpacks_wrongly {
                    tracing::error!(page = page.0, "a packed page is wrong; it is copied as it is");
                }
                let is_right = now == *saved
                    && !unpacks_wrongly
                    && match &second.backups {
                        Some(backups) => backups.is_right(chunk.part.arena_id, *offset, now)?,
                        None => true,
                    };
                if !is_right {
                    wrong.push((index, now));
                }
            }
            all.push(wrong);
        }
        Ok(all)
    }
}

// The digests of all chunks, one behind the other.
fn read(pending: Vec<PendingDigests<'_>>) -> DeviceResult<Vec<Digest>> {
    let mut digests = Vec::new();
    for pending in pending {
        digests.extend(pending.wait()?);
    }
    Ok(digests)
}

impl CheckedBackups<'_> {
    // Whether the backup page of a page has this digest.
    fn is_right(&self, arena_id: ArenaId, offset: u64, digest: Digest) -> Result<bool> {
        let saved = || self.backups.saved(arena_id, offset).map(|saved| saved.location);
        let copied =
            self.copied.get(&(arena_id, offset)).copied().flatten().map(BackupLocation::Page);
        match copied.or_else(saved) {
            Some(BackupLocation::Page(page)) => Ok(self.backups.digest_of(page)? == Some(digest)),
            Some(BackupLocation::Zero) | None => Ok(true),
        }
    }
}
