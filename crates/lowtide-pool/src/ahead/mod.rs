//! Backups ahead of time: pages are copied to the host while the program runs.
//!
//! A sleep copies only pages that differ from their backups. So a page that was backed up before and has not
//! changed since costs a sleep its digest and no copy. One *step* does a bounded amount of that work; who
//! calls it, and how often, decides how much of the link it takes. This crate has no clock and no thread
//! for it.
//!
//! A step looks at some pages: the device computes their digests. A page that has the digest of its backup is
//! saved. A page that two looks in a row found the same, and that is not saved, is copied; one that changes
//! all the time is left to the sleep. `copier.rs` copies, `round.rs` decides what comes next.
//!
//! A step has the pool's backups for as long as it lasts, so it excludes turns. It excludes nothing else:
//! blocks are allocated and freed meanwhile, and chunks move. What is under a page may therefore change at
//! any moment. A backup holds what was once read, together with the digest of just these bytes, and it
//! counts only where the page has that digest when it sleeps.

mod copier;
pub(crate) mod reader;
pub(crate) mod round;

use std::ops::Range;
use std::sync::Arc;

use copier::{CopiedPage, Copier};
use lowtide_device::digest::{Digest, Keys};
use lowtide_device::{Bytes, Error as DeviceError, Reservation, Stream};
use lowtide_types::SleepPolicy;
use reader::PageReader;
use round::{Ahead, Place};

use crate::backups::slab::{Form, PAGE};
use crate::backups::{BackupLocation, BackupPage, Backups, Saved};
use crate::copy::piece::PIECE;
use crate::lock::limit::Limit;
use crate::pool::Pool;
use crate::state::State;
use crate::state::arenas::ArenaId;
use crate::turns::changes::zero_digest;
use crate::{Error, Result};

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
        self.prepare_carriers()?;
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
        let reader = Arc::clone(&state.reader);
        let (backups, ahead) =
            (std::mem::take(&mut state.backups), std::mem::take(&mut state.ahead));
        let arena_id = ahead.place().map(|place| place.arena_id);
        Ok(Some(Step { pool: self, reader, backups, ahead, arena_id }))
    }
}

/// A page that two looks in a row found the same.
#[derive(Debug, Clone, Copy)]
struct Rested {
    offset: u64,
    digest: Digest,
}

impl Rested {
    // Whether two pages go in one piece.
    fn is_before(&self, next: &Rested) -> bool {
        self.offset + PAGE == next.offset && !next.offset.is_multiple_of(PIECE)
    }
}

/// A step: while it lives, it has the backups.
struct Step<'a> {
    pool: &'a Pool,
    reader: Arc<PageReader>,
    backups: Backups,
    ahead: Ahead,
    /// The arena that is looked at, if there is one.
    arena_id: Option<ArenaId>,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // Added up without the lock, which an allocation may want.
        let used = self.arena_id.map(|arena_id| {
            let tag = arena_id.tag();
            (
                tag,
                ArenaId::of_tag(tag)
                    .into_iter()
                    .map(|arena_id| self.backups.used_by(arena_id))
                    .sum(),
            )
        });
        let held = self.backups.held();
        // Also where the pool broke meanwhile: no thread may wait for the end of this step for ever.
        let Some(mut state) = self.pool.shared.monitor.lock_as_it_is() else { return };
        state.backups = std::mem::take(&mut self.backups);
        state.ahead = std::mem::take(&mut self.ahead);
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
        while let Some(arena_id) = ahead.next_room(is_saved) {
            let arena = &self.arenas[arena_id];
            let live = arena.live_pages();
            if !live.is_empty() || self.backups.has(arena_id) {
                ahead.enter(Place::new(arena_id, arena.reservation.clone(), &live));
            }
        }
        self.ahead = ahead;
    }
}

impl Step<'_> {
    fn run(&mut self, most: Bytes) -> Result<AheadReport> {
        self.ahead.settle(&mut self.backups, &self.reader)?;
        let Some(place) = self.ahead.place() else { return Ok(self.report(0, 0)) };
        let (arena_id, reservation, reader) =
            (place.arena_id, place.reservation.clone(), Arc::clone(&self.reader));
        let group = place.group(LOOKED_AT_ONCE).to_vec();
        if place.is_new() {
            self.forget_dead(arena_id);
        }
        if group.is_empty() {
            return Ok(self.report(0, 0));
        }
        let stream = reader.stream(&self.pool.shared.device)?;
        let read = reader.begin(arena_id, group[0]..group[group.len() - 1] + PAGE);
        let looked = look(stream, &reservation, &group)?;
        drop(read);
        let most = usize::try_from((most.0 / PAGE).max(1)).unwrap_or(usize::MAX);
        let (rested, left) = self.sort_out(arena_id, &looked, most);
        let mut saved = 0;
        for piece in rested.chunk_by(Rested::is_before) {
            saved += self.copy(stream, (arena_id, &reservation), piece)?;
        }
        self.ahead.advance(&group, left);
        Ok(self.report(looked.len(), saved))
    }

    fn report(&mut self, looked: usize, saved: usize) -> AheadReport {
        let bytes = |pages: usize| Bytes(pages as u64 * PAGE);
        let next = self.ahead.end_of_step(saved);
        if next != AheadNext::More {
            // It is made again when a page has changed.
            self.ahead.copier = None;
        }
        AheadReport { looked: bytes(looked), saved: bytes(saved), next }
    }

    // Gives back the backups of pages without live bytes.
    fn forget_dead(&mut self, arena_id: ArenaId) {
        let Some(place) = self.ahead.place() else { return };
        let saved = self.backups.pages(arena_id).keys().copied();
        let dead: Vec<u64> = saved.filter(|offset| !place.has(*offset)).collect();
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
    ) -> (Vec<Rested>, Option<u64>) {
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
                rested.push(Rested { offset, digest });
            }
        }
        (rested, None)
    }

    // Copies neighbouring pages that have rested. Returns how many are saved now.
    fn copy(
        &mut self,
        stream: &Stream,
        (arena_id, reservation): (ArenaId, &Reservation),
        piece: &[Rested],
    ) -> Result<usize> {
        let (device, policy) = (&self.pool.shared.device, &self.pool.shared.policy);
        if self.ahead.copier.is_none() {
            self.ahead.copier = Copier::open(device, policy)?;
        }
        let Some(copier) = self.ahead.copier.clone() else {
            self.ahead.has_refused(piece.len());
            return Ok(0);
        };
        let (reader, offset) = (Arc::clone(&self.reader), piece[0].offset);
        let reading = reader.begin(arena_id, offset..offset + piece.len() as u64 * PAGE);
        let Some(read) = copier.read(stream, (reservation, Bytes(offset)), piece.len())? else {
            return Ok(0); // it was unmapped meanwhile
        };
        drop(reading);
        let mut pages = Vec::with_capacity(piece.len());
        for (rested, page) in piece.iter().zip(read) {
            if page.digest == rested.digest {
                pages.push((rested.offset, page));
            } else {
                self.ahead.has_changed(arena_id, rested.offset, page.digest);
            }
        }
        let pages = self.house(arena_id, pages)?;
        let mut saved = 0;
        for run in pages.chunk_by(|(_, one), (_, next)| one.is_before(next)) {
            let copied: Vec<CopiedPage> = run.iter().map(|(_, page)| *page).collect();
            let memory = self.backups.memory(copied[0].to.slab).clone();
            let is_wrong = copier.send(stream, &copied, &memory, policy)?;
            for ((offset, page), is_wrong) in run.iter().zip(is_wrong) {
                self.ahead.unsure.retain(|slot| *slot != page.to);
                let location = BackupLocation::Page(page.to);
                if is_wrong {
                    // It is left to the sleep, which copies it as it is.
                    tracing::error!(offset, "a page that was packed ahead of time is wrong");
                    self.backups.give(location);
                    continue;
                }
                let digest = page.digest;
                self.backups.pages(arena_id).insert(*offset, Saved { digest, location });
                self.ahead.forget(arena_id, *offset);
                saved += 1;
            }
        }
        Ok(saved)
    }

    // Finds a slot for each page; pages for which there is none are left out. From here on the slots hold
    // nothing until a copy has arrived.
    fn house(
        &mut self,
        arena_id: ArenaId,
        mut pages: Vec<(u64, CopiedPage)>,
    ) -> Result<Vec<(u64, CopiedPage)>> {
        let mut slots = Vec::with_capacity(pages.len());
        for (offset, page) in &pages {
            let saved = self.backups.saved(arena_id, *offset).map(|saved| saved.location);
            slots.push(match saved {
                Some(BackupLocation::Page(slot)) if slot.form == page.form() => Some(slot),
                _ => None,
            });
        }
        for form in [Form::Raw, Form::Packed] {
            let is_homeless =
                |index: &usize| slots[*index].is_none() && pages[*index].1.form() == form;
            let homeless: Vec<usize> = (0..pages.len()).filter(is_homeless).collect();
            let taken = self.take_slots(form, homeless.len() as u64)?;
            for (index, slot) in homeless.into_iter().zip(taken) {
                slots[index] = Some(slot);
            }
        }
        let all = pages.len();
        let mut housed = Vec::with_capacity(all);
        for ((offset, page), slot) in pages.drain(..).zip(slots) {
            let Some(to) = slot else { continue };
            if let Some(saved) = self.backups.pages(arena_id).remove(&offset)
                && saved.location != BackupLocation::Page(to)
            {
                self.backups.give(saved.location);
            }
            self.ahead.unsure.push(to);
            let mut page = page;
            page.to = to;
            housed.push((offset, page));
        }
        self.ahead.has_refused(all - housed.len());
        Ok(housed)
    }

    // None where the limits of the policy or the host have no room for them.
    fn take_slots(&mut self, form: Form, slots: u64) -> Result<Vec<BackupPage>> {
        let (device, policy) = (&self.pool.shared.device, &self.pool.shared.policy);
        let most = policy.backup_most.unwrap_or(Bytes(u64::MAX)).min(policy.ahead_most);
        let direct = policy.direct_backups;
        for count in [slots.max(GROWN_BY), slots] {
            let missing = self.backups.missing(form, slots, direct);
            let grown = self.backups.missing(form, count, direct);
            let count = if missing == Bytes::ZERO { slots } else { count };
            if missing > Bytes::ZERO && self.backups.held() + grown > most {
                continue;
            }
            match self.backups.take((form, count), device, direct, Limit::NONE) {
                Ok(mut taken) => {
                    for spare in taken.split_off(slots as usize) {
                        self.backups.give(BackupLocation::Page(spare));
                    }
                    return Ok(taken);
                }
                Err(Error::Device(DeviceError::NoHostHeadroom { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Vec::new())
    }

    fn settle_after_failure(&mut self) {
        self.ahead.is_unsettled = true;
        self.ahead.copier = None;
        if let Err(error) = self.ahead.settle(&mut self.backups, &self.reader) {
            tracing::warn!(%error, "work of a failed backup may keep pages pinned for now");
        }
    }
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
