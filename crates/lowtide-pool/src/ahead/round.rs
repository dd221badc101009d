//! Rounds: in which order pages are looked at, which of them have rested, and how memory is taken from under
//! a read.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_device::digest::Digest;
use lowtide_device::{Bytes, Reservation};

use crate::backups::BackupPage;
use crate::copy::packing::Ring;
use crate::lock::{Condvar, Mutex, lock, wait};
use crate::policy::PAGE;
use crate::state::arenas::ArenaId;

/// The result of one step of [`Pool::back_up_some`](crate::Pool::back_up_some).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AheadReport {
    /// Bytes whose digests were computed.
    pub looked: Bytes,
    /// Bytes of pages that are saved now and were not before.
    pub saved: Bytes,
    /// What the next step will find.
    pub next: AheadNext,
}

/// What the next step of [`Pool::back_up_some`](crate::Pool::back_up_some) will find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AheadNext {
    /// More to do.
    More,
    /// Nothing, unless a page has changed since. Every page is saved, or it changes all the time.
    #[default]
    Nothing,
    /// No room: pages are left for which host memory or a little device memory is missing.
    NoRoom,
    /// A sleep or a wake that is under way, or another step. Nothing was done.
    Busy,
}

/// What steps remember from one to the next.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Set from the first step of a round to its last.
    has_round: bool,
    /// The arenas of this round that no step has entered, the next one last.
    arenas: Vec<ArenaId>,
    visit: Option<Visit>,
    tally: RoundTally,
    /// The digests of pages that are not saved, when a step last looked.
    seen: BTreeMap<ArenaId, BTreeMap<u64, Digest>>,
    /// Device memory for copies, from the first until nothing is left to copy.
    pub(crate) ring: Option<Ring>,
    /// Slots to which a copy that failed may still write, and those that were meant for the next ones.
    pub(super) unsure: Vec<BackupPage>,
    /// Set where a step failed, until its stream was waited for.
    pub(super) is_unsettled: bool,
}

/// The pages of one round, by what became of them.
#[derive(Default)]
struct RoundTally {
    saved: usize,
    /// Those that the next round will find rested, or not.
    new: usize,
    /// Those for which there was no room.
    refused: usize,
}

/// The arena that is being looked at.
pub(super) struct Visit {
    pub(super) arena_id: ArenaId,
    pub(super) reservation: Reservation,
    /// The pages with live bytes when the arena was entered, in order.
    pages: Vec<u64>,
    /// The number of pages that are done.
    at: usize,
    /// Set until a step has begun with it.
    is_new: bool,
}

impl Visit {
    pub(super) fn new(arena_id: ArenaId, reservation: Reservation, live: &[Range<u64>]) -> Visit {
        let pages = live.iter().flat_map(|run| run.clone().step_by(PAGE as usize)).collect();
        Visit { arena_id, reservation, pages, at: 0, is_new: true }
    }

    /// Returns the next pages, at most so many.
    pub(super) fn group(&self, most: usize) -> &[u64] {
        let rest = &self.pages[self.at..];
        &rest[..rest.len().min(most)]
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether a page had live bytes when the arena was entered.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages.binary_search(&page).is_ok()
    }

    fn is_done(&self) -> bool {
        self.at == self.pages.len()
    }
}

impl Ahead {
    /// Begins a round with these arenas, unless one is under way.
    pub(super) fn begin_round(&mut self, arenas: impl FnOnce() -> Vec<ArenaId>) {
        if !self.has_round {
            self.arenas = arenas();
            self.arenas.reverse();
            self.has_round = true;
        }
    }

    /// Returns an arena to enter, of those that are still saved, unless a step is in one.
    pub(super) fn next_arena(&mut self, is_saved: impl Fn(&ArenaId) -> bool) -> Option<ArenaId> {
        let is_open =
            |visit: &Visit| is_saved(&visit.arena_id) && (visit.is_new || !visit.is_done());
        if self.visit.as_ref().is_some_and(is_open) {
            return None;
        }
        self.visit = None;
        std::iter::from_fn(|| self.arenas.pop()).find(is_saved)
    }

    pub(super) fn enter(&mut self, visit: Visit) {
        self.visit = Some(visit);
    }

    pub(super) fn visit(&self) -> Option<&Visit> {
        self.visit.as_ref()
    }

    /// Begins with an arena: forgets its pages without live bytes.
    pub(super) fn forget_dead(&mut self) {
        if let Some(visit) = &mut self.visit {
            visit.is_new = false;
        }
        if let Some(visit) = &self.visit
            && let Some(seen) = self.seen.get_mut(&visit.arena_id)
        {
            seen.retain(|page, _| visit.has(*page));
        }
    }

    /// Forgets a page that is saved.
    pub(super) fn forget(&mut self, arena_id: ArenaId, page: u64) {
        if let Some(seen) = self.seen.get_mut(&arena_id) {
            seen.remove(&page);
        }
    }

    /// Returns whether a page is as it was when it was last looked at. If not, remembers how it is now.
    pub(super) fn has_rested(&mut self, arena_id: ArenaId, page: u64, digest: Digest) -> bool {
        let before = self.seen.entry(arena_id).or_default().insert(page, digest);
        self.tally.new += usize::from(before.is_none());
        before == Some(digest)
    }

    /// Remembers how a page is that changed since the look.
    pub(super) fn has_changed(&mut self, arena_id: ArenaId, page: u64, digest: Digest) {
        self.seen.entry(arena_id).or_default().insert(page, digest);
    }

    /// Counts pages for which there was no room.
    pub(super) fn has_refused(&mut self, pages: usize) {
        self.tally.refused += pages;
    }

    /// Records that a group of pages is done, all of them or those before one.
    pub(super) fn advance(&mut self, group: &[u64], before: Option<u64>) {
        if let Some(visit) = &mut self.visit {
            visit.at += match before {
                Some(left) => group.partition_point(|page| *page < left),
                None => group.len(),
            };
        }
    }

    /// Ends a step that saved so many pages, and the round where this was its last.
    pub(super) fn end_of_step(&mut self, saved: usize) -> AheadNext {
        self.tally.saved += saved;
        if !self.arenas.is_empty() || self.visit.as_ref().is_some_and(|visit| !visit.is_done()) {
            return AheadNext::More;
        }
        (self.has_round, self.visit) = (false, None);
        match std::mem::take(&mut self.tally) {
            RoundTally { saved: 0, new: 0, refused: 0 } => AheadNext::Nothing,
            RoundTally { saved: 0, new: 0, .. } => AheadNext::NoRoom,
            RoundTally { .. } => AheadNext::More,
        }
    }

    /// Returns the slots that are neither free nor used.
    pub(crate) fn unsure(&self) -> &[BackupPage] {
        &self.unsure
    }

    /// Returns whether work of a step that failed may be under way.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }
}

/// The pages that a step reads. A thread that unmaps such
/// a page waits: no page goes while a copy reads it, and no page is kept for longer than one read.
#[derive(Default)]
pub(crate) struct PageReader {
    /// The read that is under way, from the first page to the last.
    read: Mutex<Option<(ArenaId, Range<u64>)>>,
    ended: Condvar,
}

/// The most reads of one page by one step: a look, and a copy into the ring. A step looks at no page that was
/// free when it entered the arena.
pub(crate) const READS_MOST: u32 = 2;

impl PageReader {
    /// Begins to read pages of an arena. The read ends when the result is dropped; the work must have been waited
    /// for by then.
    pub(super) fn begin(&self, arena_id: ArenaId, pages: Range<u64>) -> PageRead<'_> {
        *lock(&self.read) = Some((arena_id, pages));
        PageRead(self)
    }

    /// Waits for the end of a read of this range, if one is under way.
    pub(crate) fn wait(&self, arena_id: ArenaId, range: &Range<u64>) {
        let reads = |read: &Option<(ArenaId, Range<u64>)>| {
            read.as_ref().is_some_and(|(other, pages)| {
                *other == arena_id && pages.start < range.end && range.start < pages.end
            })
        };
        let mut read = lock(&self.read);
        while reads(&read) {
            read = wait(&self.ended, read);
        }
    }
}

/// A read that is under way.
pub(super) struct PageRead<'a>(&'a PageReader);

impl Drop for PageRead<'_> {
    fn drop(&mut self) {
        *lock(&self.0.read) = None;
        self.0.ended.notify_all();
    }
}
