//! Backups ahead of time: pages are copied to the host while the program runs.
//!
//! A sleep copies only pages that differ from their backups. So a page that was backed up before and has not
//! changed since costs a sleep its digest and no copy. One *step* does a bounded amount of that work; who
//! calls it, and how often, decides how much of the link it takes. This crate has no clock and no thread
//! for it.
//!
//! A step looks at some pages: the device computes their digests. A page that has the digest of its backup is
//! saved. A page that two looks in a row found the same, and that is not saved, is copied; one that changes
//! all the time is left to the sleep. `round.rs` decides what comes next.
//!
//! A step has the pool's backups for as long as it lasts, so it excludes turns. It excludes nothing else:
//! blocks are allocated and freed meanwhile, and chunks move. What is under a page may therefore change at
//! any moment. A backup holds what was once read, together with the digest of just these bytes, and it
//! counts only where the page has that digest when it sleeps.
//!
//! The program writes to its pages while they are copied. So a piece is first copied into a place of the ring,
//! which only lowtide has. Its digests, its packed form and the bytes that go to the host are all made from
//! this snapshot: the digest of a backup is always that of its content. If the live page were read more than
//! once, a page that changes in between and changes back would match a backup that is wrong.

pub(crate) mod round;

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Error as DeviceError, Reservation, Stream};
use lowtide_types::SleepPolicy;

use crate::ahead::round::{Ahead, PageReader, Visit};
use crate::backups::changed::Changed;
use crate::backups::{BackupLocation, BackupPage, Backups, Saved};
use crate::copy::packing::{self, Form, Ring};
use crate::copy::piece::Piece;
use crate::copy::queue::Direction;
use crate::copy::streams::CopyStreams;
use crate::copy::transfer::Transfer;
use crate::lock::limit::Limit;
use crate::policy::{PAGE, PIECE, Policy};
use crate::pool::Pool;
use crate::state::State;
use crate::state::arenas::ArenaId;
use crate::turns::plan::zero_digest;
use crate::{Error, Result, copy};

pub use round::{AheadNext, AheadReport};

/// The number of pages that a step looks at. Each is one block of a kernel, so that a GPU has room for the
/// program's beside them.
const LOOKED_AT_ONCE: usize = 32;

/// The number of slots for which host memory is taken at once.
const GROWN_BY: u64 = 32;

impl Pool {
    /// Backs up some pages of `Offload` tags that are awake, for sleeps to come: at most `most` bytes, but at
    /// least a page, and looks at up to 64 MiB for it. A sleep does not copy a page again that has not
    /// changed since.
    ///
    /// Call it again and again while there is more to do, from a thread of low priority, and rest in between:
    /// that decides how much of the link it takes. Allocations and frees do not wait for it. A sleep or a
    /// wake waits for the end of the step. Backups stay within [`Policy::ahead_most`](crate::Policy::ahead_most)
    /// and [`Policy::backup_most`](crate::Policy::backup_most).
    ///
    /// ```
    /// use lowtide_device::{Bytes, Device, HostOptions};
    /// use lowtide_pool::{AheadNext, Policy, Pool, Scope};
    /// # fn main() -> lowtide_pool::Result<()> {
    /// # let budget = Some(Bytes::mib(64));
    /// let device = Device::host(HostOptions { budget, ..HostOptions::default() })?;
    /// let policy = Policy::default().ahead_most(Bytes::gib(1));
    /// let pool = Pool::builder(&device).policy(policy).build()?;
    /// let weights = pool.block(Bytes::mib(6))?;
    /// weights.fill(7)?;
    /// while pool.back_up_some(Bytes::mib(8))?.next == AheadNext::More {}
    /// assert_eq!(pool.sleep(Scope::Whole)?.copied, Bytes::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the device refused. No backup is wrong then, and the next step goes on.
    pub fn back_up_some(&self, most: Bytes) -> Result<AheadReport> {
        if self.shared.policy.ahead_most == Bytes::ZERO {
            return Ok(AheadReport::default());
        }
        // A first sleep should not have to wait for it.
        self.prepare_streams()?;
        let Some(mut step) = self.begin_step()? else {
            return Ok(AheadReport { next: AheadNext::Busy, ..AheadReport::default() });
        };
        let _change = self.shared.monitor.change("a backup ahead of time");
        let outcome = step.run(most);
        if outcome.is_err() {
            step.settle_after_failure();
        }
        outcome
    }

    fn begin_step(&self) -> Result<Option<Step<'_>>> {
        let Some(mut state) = self.shared.monitor.begin_step()? else { return Ok(None) };
        state.plan_step();
        let arena_id = state.ahead.visit().map(|visit| visit.arena_id);
        Ok(Some(Step {
            pool: self,
            reader: Arc::clone(&state.reader),
            streams: state.copy_streams.take(),
            backups: std::mem::take(&mut state.backups),
            ahead: std::mem::take(&mut state.ahead),
            arena_id,
        }))
    }
}

/// A step: while it lives, it has the backups and the streams of copies.
struct Step<'a> {
    pool: &'a Pool,
    reader: Arc<PageReader>,
    streams: Option<CopyStreams>,
    backups: Backups,
    ahead: Ahead,
    /// The arena that is looked at, if there is one.
    arena_id: Option<ArenaId>,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // Added up without the lock, which an allocation may want.
        let used = self.arena_id.map(|arena_id| {
            let arenas = ArenaId::of_tag(arena_id.tag()).into_iter();
            (arena_id.tag(), arenas.map(|arena_id| self.backups.used_by(arena_id)).sum())
        });
        let held = self.backups.held();
        // Also where the pool broke meanwhile: no thread may wait for the end of this step for ever.
        let Some(mut state) = self.pool.shared.monitor.lock_as_it_is() else { return };
        state.backups = std::mem::take(&mut self.backups);
        state.ahead = std::mem::take(&mut self.ahead);
        state.copy_streams = self.streams.take();
        state.count_backups_of(used, held);
        self.pool.shared.monitor.end_step(state);
    }
}

impl State {
    // Finds the arena that is looked at, where there is one.
    fn plan_step(&mut self) {
        let mut ahead = std::mem::take(&mut self.ahead);
        let is_saved = |arena_id: &ArenaId| {
            self.is_awake(*arena_id) && self.tags[arena_id.tag()].policy == SleepPolicy::Offload
        };
        ahead.begin_round(|| self.arenas.ids().filter(is_saved).collect());
        // A tag may have fallen asleep since.
        while let Some(arena_id) = ahead.next_arena(is_saved) {
            let arena = &self.arenas[arena_id];
            let live = arena.live_pages();
            if !live.is_empty() || self.backups.has(arena_id) {
                ahead.enter(Visit::new(arena_id, arena.reservation.clone(), &live));
            }
        }
        self.ahead = ahead;
    }
}

impl Step<'_> {
    fn run(&mut self, most: Bytes) -> Result<AheadReport> {
        self.settle()?;
        let Some(visit) = self.ahead.visit() else { return Ok(self.report(0, 0)) };
        let (arena_id, reservation, reader) =
            (visit.arena_id, visit.reservation.clone(), Arc::clone(&self.reader));
        let group = visit.group(LOOKED_AT_ONCE).to_vec();
        if visit.is_new() {
            self.forget_dead(arena_id);
        }
        if group.is_empty() {
            return Ok(self.report(0, 0));
        }
        let shared = &self.pool.shared;
        let streams = CopyStreams::kept(&mut self.streams, &shared.device, &shared.policy)?;
        let read = reader.begin(arena_id, group[0]..group[group.len() - 1] + PAGE);
        let looked = look(&streams.checks, &reservation, &group)?;
        drop(read);
        let most = usize::try_from((most.0 / PAGE).max(1)).unwrap_or(usize::MAX);
        let (rested, left) = self.sort_out(arena_id, &looked, most);
        let mut saved = 0;
        let is_one_piece = |one: &Changed, next: &Changed| {
            one.offset + PAGE == next.offset && !next.offset.is_multiple_of(PIECE)
        };
        for piece in rested.chunk_by(is_one_piece) {
            saved += self.copy(&reservation, piece)?;
        }
        self.ahead.advance(&group, left);
        Ok(self.report(looked.len(), saved))
    }

    fn report(&mut self, looked: usize, saved: usize) -> AheadReport {
        let bytes = |pages: usize| Bytes(pages as u64 * PAGE);
        let next = self.ahead.end_of_step(saved);
        if next != AheadNext::More {
            // It is made again when a page has changed.
            self.ahead.ring = None;
        }
        AheadReport { looked: bytes(looked), saved: bytes(saved), next }
    }

    // Gives back the backups of pages without live bytes.
    fn forget_dead(&mut self, arena_id: ArenaId) {
        let Some(visit) = self.ahead.visit() else { return };
        let saved = self.backups.pages(arena_id).keys().copied();
        let dead: Vec<u64> = saved.filter(|offset| !visit.has(*offset)).collect();
        for offset in dead {
            if let Some(saved) = self.backups.pages(arena_id).remove(&offset) {
                self.backups.give(saved.location);
            }
        }
        self.ahead.forget_dead();
    }

    // Returns the pages to copy, at most so many, and the first page that is left for the next step.
    fn sort_out(
        &mut self,
        arena_id: ArenaId,
        looked: &[(u64, Digest)],
        most: usize,
    ) -> (Vec<Changed>, Option<u64>) {
        let (mut rested, zero) = (Vec::new(), zero_digest());
        for (offset, digest) in looked.iter().copied() {
            if self.backups.saved(arena_id, offset).is_some_and(|saved| saved.digest == digest) {
                self.ahead.forget(arena_id, offset);
            } else if digest == zero {
                // The digest says it all: there is nothing to copy.
                let saved = Saved { digest, location: BackupLocation::Zero };
                if let Some(before) = self.backups.pages(arena_id).insert(offset, saved) {
                    self.backups.give(before.location);
                }
                self.ahead.forget(arena_id, offset);
            } else if self.ahead.has_rested(arena_id, offset, digest) {
                if rested.len() == most {
                    return (rested, Some(offset));
                }
                rested.push(Changed { arena_id, offset, digest, to: None, base: None });
            }
        }
        (rested, None)
    }

    // Copies neighbouring pages that have rested. Returns how many are saved now.
    fn copy(&mut self, reservation: &Reservation, rested: &[Changed]) -> Result<usize> {
        let shared = &self.pool.shared;
        let streams = CopyStreams::kept(&mut self.streams, &shared.device, &shared.policy)?;
        let kept = self.ahead.ring.take();
        let Some(ring) = kept.or_else(|| streams.ring_of_backups_ahead(&shared.policy)) else {
            self.ahead.has_refused(rested.len());
            return Ok(0);
        };
        let (arena_id, start) = (rested[0].arena_id, rested[0].offset);
        let reading = self.reader.begin(arena_id, start..start + rested.len() as u64 * PAGE);
        let read = snapshot(&streams.checks, (reservation, Bytes(start)), rested, &ring)?;
        drop(reading);
        let mut pages = Vec::with_capacity(rested.len());
        for (page, rested) in read.into_iter().zip(rested) {
            if page.digest == rested.digest {
                pages.push(page);
            } else {
                self.ahead.has_changed(arena_id, page.offset, page.digest);
            }
        }
        let pages = self.house(pages)?;
        let (snapshot, at) = ring.snapshot();
        let runs: Vec<&[Changed]> = pages.chunk_by(Changed::is_before).collect();
        let piece = |run: &&[Changed]| {
            let offset = at.0 + run[0].offset - start;
            Piece { offset, ..self.backups.piece(run, 0, snapshot) }
        };
        let pieces: Vec<Piece> = runs.iter().map(piece).collect();
        let transfer = Transfer::new(Direction::Out, 1, &pieces);
        let streams = CopyStreams::kept(&mut self.streams, &shared.device, &shared.policy)?;
        copy::run_here(streams, &transfer, Some(&ring), pieces)?;
        let mut saved = 0;
        for page in &pages {
            self.ahead.unsure.retain(|slot| Some(*slot) != page.to);
            let in_ring = snapshot.address().plus(at + Bytes(page.offset - start));
            if transfer.unpacks_wrongly(in_ring, page.digest) {
                // It is left to the sleep, which copies it as it is.
                tracing::error!(page.offset, "a page that was packed ahead of time is wrong");
                page.to.into_iter().for_each(|slot| self.backups.give(BackupLocation::Page(slot)));
                continue;
            }
            self.backups.confirm(std::slice::from_ref(page));
            self.ahead.forget(arena_id, page.offset);
            saved += 1;
        }
        self.ahead.ring = Some(ring);
        Ok(saved)
    }

    // Finds a slot for each page; pages for which there is none are left out. From here on the slots hold
    // nothing until a copy has arrived.
    fn house(&mut self, mut pages: Vec<Changed>) -> Result<Vec<Changed>> {
        for page in &mut pages {
            let saved = self.backups.saved(page.arena_id, page.offset).map(|saved| saved.location);
            page.to = match saved {
                Some(BackupLocation::Page(slot)) if slot.form == page.form() => Some(slot),
                _ => None,
            };
        }
        let pool = self.pool;
        let housed = self
            .backups
            .house(&mut pages, |backups, form, slots| take_slots(pool, backups, form, slots));
        let all = pages.len();
        pages.retain(|page| page.to.is_some());
        self.ahead.has_refused(all - pages.len());
        for Changed { arena_id, offset, to, .. } in &pages {
            if let Some(saved) = self.backups.pages(*arena_id).remove(offset)
                && Some(saved.location) != to.map(BackupLocation::Page)
            {
                self.backups.give(saved.location);
            }
            self.ahead.unsure.extend(*to);
        }
        housed.map(|()| pages)
    }

    // After a step that failed: waits for its work, and takes the slots back that it may have written to.
    fn settle(&mut self) -> Result<()> {
        if self.ahead.is_unsettled {
            self.streams.as_ref().map_or(Ok(()), CopyStreams::settle)?;
            self.ahead.unsure.drain(..).for_each(|slot| self.backups.give_up(slot));
            self.ahead.is_unsettled = false;
        }
        Ok(())
    }

    fn settle_after_failure(&mut self) {
        self.ahead.is_unsettled = true;
        self.ahead.ring = None;
        if let Err(error) = self.settle() {
            tracing::warn!(%error, "work of a failed backup may keep pages pinned for now");
        }
    }
}

// None where the limits of the policy or the host have no room for them.
fn take_slots(
    pool: &Pool,
    backups: &mut Backups,
    form: Form,
    slots: u64,
) -> Result<Vec<BackupPage>> {
    let (device, policy): (_, &Policy) = (&pool.shared.device, &pool.shared.policy);
    let most = policy.backup_most.unwrap_or(Bytes(u64::MAX)).min(policy.ahead_most);
    let direct = policy.direct_backups;
    for count in [slots.max(GROWN_BY), slots] {
        let missing = backups.missing(form, slots, direct);
        let grown = backups.missing(form, count, direct);
        let count = if missing == Bytes::ZERO { slots } else { count };
        if missing > Bytes::ZERO && backups.held() + grown > most {
            continue;
        }
        match backups.take((form, count), device, direct, Limit::NONE) {
            Ok(mut taken) => {
                for spare in taken.split_off(slots as usize) {
                    backups.give(BackupLocation::Page(spare));
                }
                return Ok(taken);
            }
            Err(Error::Device(DeviceError::NoHostHeadroom { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

// Copies neighbouring pages into the ring. Returns what they are there; none where they are not mapped any
// more.
fn snapshot(
    stream: &Stream,
    from: (&Reservation, Bytes),
    pages: &[Changed],
    ring: &Ring,
) -> Result<Vec<Changed>> {
    let (to, size) = (ring.snapshot(), Bytes(pages.len() as u64 * PAGE));
    match stream.copy_within(from, to, size) {
        Err(DeviceError::BadRange { .. }) => return Ok(Vec::new()),
        given => given?,
    }
    let digests = stream.digest(to, size, Keys::of_this_process())?.wait()?;
    let mut bases = vec![None; pages.len()];
    if ring.packs() {
        let Range { start, end } = to.1.0..to.1.0 + size.0;
        bases = packing::look(stream, to.0, &[start..end])?;
    }
    let read = pages.iter().zip(digests).zip(bases);
    Ok(read.map(|((page, digest), base)| Changed { digest, base, ..*page }).collect())
}

// The digests of pages on the device, without those that are not mapped any more.
fn look(stream: &Stream, reservation: &Reservation, pages: &[u64]) -> Result<Vec<(u64, Digest)>> {
    let digests = |runs: &[Range<u64>]| {
        stream.digest_ranges(reservation, runs, Keys::of_this_process())?.wait()
    };
    let runs = pages.chunk_by(|one, next| one + PAGE == *next);
    let runs: Vec<_> = runs.map(|run| run[0]..run[run.len() - 1] + PAGE).collect();
    match digests(&runs) {
        Ok(digests) => return Ok(pages.iter().copied().zip(digests).collect()),
        Err(DeviceError::BadRange { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut looked = Vec::new();
    for page in pages {
        match digests(&[*page..page + PAGE]) {
            Ok(digests) => looked.extend(digests.first().map(|digest| (*page, *digest))),
            Err(DeviceError::BadRange { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(looked)
}
