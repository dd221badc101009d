//! Backups: the host copies of pages, each with its digest.
//!
//! Host memory is taken in slabs, each given back whole once nothing in it is used: first as much as
//! may be registered with the device, then plain pages. The content of a saved page is in a slot of
//! a slab, or nowhere where it is all zeros. All slots of a slab have one form, raw or packed; a slab
//! that nothing uses can take the other one.

pub(crate) mod changed;
pub(crate) mod slab;

use std::collections::{BTreeMap, BTreeSet};

use lowtide_device::digest::{Digest, Keys};
use lowtide_device::headroom;
use lowtide_device::packing::PackedFault;
use lowtide_device::{Bytes, Device};

use crate::Result;
use crate::backups::slab::{Memory, Slab};
use crate::copy::packing::Form;
use crate::error::TurnStep;
use crate::lock::limit::{Limit, Progress};
use crate::policy::PAGE;
use crate::state::arenas::ArenaId;

/// A slot of a slab, which holds one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackupPage {
    pub(crate) slab: u32,
    pub(crate) page: u32,
    pub(crate) form: Form,
}

impl BackupPage {
    /// Returns where the slot begins in the memory of its slab.
    pub(crate) fn offset(self) -> Bytes {
        Bytes(u64::from(self.page) * self.form.bytes())
    }
}

/// The location of a saved page's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackupLocation {
    /// Nowhere: it is all zeros.
    Zero,
    Page(BackupPage),
}

/// A page as it was when it was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) digest: Digest,
    pub(crate) location: BackupLocation,
}

/// Saved pages of one arena, by offset.
pub(crate) type SavedPages = BTreeMap<u64, Saved>;

/// The backups of a pool.
#[derive(Default)]
pub(crate) struct Backups {
    slabs: BTreeMap<u32, Slab>,
    free: BTreeSet<BackupPage>,
    arenas: BTreeMap<ArenaId, SavedPages>,
}

impl Backups {
    /// Returns the saved pages of an arena.
    pub(crate) fn pages(&mut self, arena_id: ArenaId) -> &mut SavedPages {
        self.arenas.entry(arena_id).or_default()
    }

    /// Returns whether a page of an arena is saved.
    pub(crate) fn has(&self, arena_id: ArenaId) -> bool {
        self.arenas.get(&arena_id).is_some_and(|pages| !pages.is_empty())
    }

    /// Returns a saved page of an arena.
    pub(crate) fn saved(&self, arena_id: ArenaId, offset: u64) -> Option<&Saved> {
        self.arenas.get(&arena_id)?.get(&offset)
    }

    /// Computes the digest of a backup page's content on the host. A packed page that is no such page has
    /// none.
    pub(crate) fn digest_of(&self, page: BackupPage) -> Result<Option<Digest>> {
        let content = page.form.content(self.read(page)?).ok();
        Ok(content.map(|content| Keys::of_this_process().digest(&content)))
    }

    /// Returns what is wrong with a packed page by itself, for the log.
    pub(crate) fn fault_of(&self, page: BackupPage) -> Result<Option<PackedFault>> {
        Ok(page.form.content(self.read(page)?).err())
    }

    fn read(&self, page: BackupPage) -> Result<Vec<u8>> {
        let mut bytes = vec![0; page.form.bytes() as usize];
        self.memory(page.slab).read(page.offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the host memory that an arena's backup uses.
    pub(crate) fn used_by(&self, arena_id: ArenaId) -> Bytes {
        let pages = self.arenas.get(&arena_id).into_iter().flat_map(BTreeMap::values);
        let sizes = pages.map(|saved| match saved.location {
            BackupLocation::Zero => Bytes::ZERO,
            BackupLocation::Page(page) => Bytes(page.form.bytes()),
        });
        sizes.sum()
    }

    /// Returns the host memory taken.
    pub(crate) fn held(&self) -> Bytes {
        self.slabs.values().map(|slab| slab.held).sum()
    }

    /// Returns the part of it that is registered with the device.
    pub(crate) fn direct(&self) -> Bytes {
        self.slabs.values().filter(|slab| slab.memory.is_direct()).map(|slab| slab.held).sum()
    }

    /// Returns the host memory that so many more pages of a form would take.
    pub(crate) fn missing(&self, form: Form, pages: u64, direct_most: Bytes) -> Bytes {
        let idle = self.idle().filter(|number| self.slabs[number].can_become(form));
        let idle: u64 = idle.map(|number| self.slabs[&number].slots_as(form)).sum();
        let missing = pages.saturating_sub(self.free(form) + idle);
        self.new_slabs(form, missing, direct_most).iter().map(|(_, size)| *size).sum()
    }

    // The slabs that so many slots take: whether each is registered, and its size.
    fn new_slabs(&self, form: Form, mut slots: u64, direct_most: Bytes) -> Vec<(bool, Bytes)> {
        let (mut direct, mut slabs) = (direct_most.saturating_sub(self.direct()), Vec::new());
        while slots > 0 {
            let registered = slots.min(form.fit(direct));
            let size = form.slab_for(if registered > 0 { registered } else { slots });
            slabs.push((registered > 0, size));
            direct = direct.saturating_sub(size);
            slots = slots.saturating_sub(form.fit(size));
        }
        slabs
    }

    // The free slots of a form.
    fn free(&self, form: Form) -> u64 {
        self.free.iter().filter(|page| page.form == form).count() as u64
    }

    // The slabs that nothing uses.
    fn idle(&self) -> impl Iterator<Item = u32> {
        self.slabs.iter().filter_map(|(number, slab)| {
            let slot = |page, form| BackupPage { slab: *number, page, form };
            let all = slot(0, Form::Raw)..=slot(u32::MAX, Form::Packed);
            (self.free.range(all).count() as u32 == slab.slots).then_some(*number)
        })
    }

    /// Takes slots for so many pages of a form, in order; those of new slabs last. No more than
    /// `direct_most` of all slabs is registered with the device. Memory for all of them is granted before
    /// the first slab is made. The limit is asked before each slab.
    ///
    /// # Errors
    /// Where the host has no room, or the limit says to stop; no slot is taken then.
    pub(crate) fn take(
        &mut self,
        (form, pages): (Form, u64),
        device: &Device,
        direct_most: Bytes,
        limit: Limit<'_>,
    ) -> Result<Vec<BackupPage>> {
        self.convert(form, pages);
        if self.free(form) >= pages {
            return Ok(self.take_free(form, pages));
        }
        let slabs = self.new_slabs(form, pages.saturating_sub(self.free(form)), direct_most);
        let total = slabs.iter().map(|(_, size)| *size).sum();
        let mut grant = headroom::grant(total)?;
        let (mut done, mut is_refused) = (Bytes::ZERO, false);
        for (is_direct, size) in slabs {
            limit.ask(TurnStep::Planning, || Progress { done, total })?;
            let mut slab = None;
            if is_direct && !is_refused {
                slab = Slab::direct(device, form, size, &mut grant)?;
                // Where one is refused the next would be too, each after its pages were made ready.
                is_refused = slab.is_none();
            }
            self.add(slab.map_or_else(|| Slab::plain(form, size, &mut grant), Ok)?);
            done += size;
        }
        Ok(self.take_free(form, pages))
    }

    // Gives the form to slabs that nothing uses, as long as slots of it are missing.
    fn convert(&mut self, form: Form, pages: u64) {
        let idle: Vec<u32> = self.idle().collect();
        for number in idle {
            if self.free(form) >= pages {
                return;
            }
            if !self.slabs[&number].can_become(form) {
                continue;
            }
            if let Some(mut slab) = self.remove(number) {
                slab.become_form(form);
                self.insert(number, slab);
            }
        }
    }

    /// Makes slabs that are registered with the device, for so many pages or as many as it takes.
    ///
    /// # Errors
    /// Where the host has no room.
    pub(crate) fn registered(device: &Device, pages: u64) -> Result<Backups> {
        let (mut made, total) = (Backups::default(), Bytes(pages * PAGE));
        let mut grant = headroom::grant(total)?;
        for (_, size) in made.new_slabs(Form::Raw, pages, total) {
            let Some(slab) = Slab::direct(device, Form::Raw, size, &mut grant)? else { break };
            made.add(slab);
        }
        Ok(made)
    }

    /// Takes over slabs in which nothing is saved.
    pub(crate) fn join(&mut self, unused: Backups) {
        debug_assert!(unused.arenas.is_empty(), "nothing is saved there");
        unused.slabs.into_values().for_each(|slab| self.add(slab));
    }

    fn add(&mut self, slab: Slab) {
        let number = self.slabs.last_key_value().map_or(0, |(number, _)| number + 1);
        self.insert(number, slab);
    }

    fn insert(&mut self, number: u32, slab: Slab) {
        let form = slab.form;
        self.free.extend((0..slab.slots).map(|page| BackupPage { slab: number, page, form }));
        self.slabs.insert(number, slab);
    }

    // Takes a slab out that nothing uses.
    fn remove(&mut self, number: u32) -> Option<Slab> {
        self.free.retain(|page| page.slab != number);
        self.slabs.remove(&number)
    }

    fn take_free(&mut self, form: Form, pages: u64) -> Vec<BackupPage> {
        let free = self.free.iter().copied().filter(|page| page.form == form);
        let taken: Vec<BackupPage> = free.take(pages as usize).collect();
        self.free.retain(|page| taken.binary_search(page).is_err());
        taken
    }

    /// Returns the memory of a slab.
    pub(crate) fn memory(&self, slab: u32) -> &Memory {
        &self.slabs[&slab].memory
    }

    /// Takes back a location that is no longer needed.
    pub(crate) fn give(&mut self, location: BackupLocation) {
        if let BackupLocation::Page(page) = location {
            self.free.insert(page);
        }
    }

    /// Takes back a slot that was taken for a copy that did not arrive. A raw one that was never written
    /// has no memory yet: it is not used again, so that none stays granted for it. (A packed one shares
    /// its pages with its neighbours.)
    pub(crate) fn give_up(&mut self, page: BackupPage) {
        let slab = self.slabs.get_mut(&page.slab).expect("the slab of a page that was taken");
        if !slab.give_up(page.offset()) {
            self.free.insert(page);
        }
    }

    /// Forgets what was saved of an arena.
    pub(crate) fn forget(&mut self, arena_id: ArenaId) {
        for saved in self.arenas.remove(&arena_id).unwrap_or_default().into_values() {
            self.give(saved.location);
        }
    }

    /// Gives back slabs that nothing uses.
    pub(crate) fn shrink(&mut self) {
        let idle: Vec<u32> = self.idle().collect();
        for number in idle {
            drop(self.remove(number));
        }
    }

    /// Checks every invariant, with slots that are neither free nor used; panics where one does not hold.
    pub(crate) fn check(&self, used: Bytes, held: Bytes, neither: &[BackupPage]) {
        let sum: Bytes = self.arenas.keys().map(|arena_id| self.used_by(*arena_id)).sum();
        assert_eq!(sum, used, "backups in use");
        assert_eq!(self.held(), held, "host memory taken");
        let mut seen = self.free.clone();
        for page in neither {
            assert!(seen.insert(*page), "{page:?} is free");
        }
        for saved in self.arenas.values().flat_map(BTreeMap::values) {
            if let BackupLocation::Page(page) = saved.location {
                assert!(seen.insert(page), "{page:?} is used twice");
            }
        }
        let slots: u64 = self.slabs.values().map(|slab| u64::from(slab.slots)).sum();
        assert_eq!(seen.len() as u64, slots, "every slot is free or used");
        for page in seen {
            let slab = &self.slabs[&page.slab];
            assert_eq!(page.form, slab.form, "{page:?} has the form of its slab");
        }
    }
}

#[cfg(test)]
mod tests {
    use lowtide_device::HostOptions;

    use super::*;
    use crate::state::tags::Tag;

    fn save(backups: &mut Backups, arena_id: u16, page: u64, location: BackupLocation) {
        let saved = Saved { digest: Digest::default(), location };
        backups.pages(id(arena_id)).insert(page * PAGE, saved);
    }

    fn id(arena_id: u16) -> ArenaId {
        ArenaId::new(Tag::of_number(arena_id.into()), true)
    }

    fn mib(pages: u64) -> Bytes {
        Bytes(pages * PAGE)
    }

    fn device() -> Device {
        Device::host(HostOptions { budget: Some(mib(1)), small_pages: true }).unwrap()
    }

    // The raw pages that need memory.
    fn missing(backups: &Backups, pages: u64) -> u64 {
        backups.missing(Form::Raw, pages, Bytes::ZERO).0 / PAGE
    }

    // Plain pages.
    fn take(backups: &mut Backups, pages: u64) -> Vec<BackupPage> {
        backups.take((Form::Raw, pages), &device(), Bytes::ZERO, Limit::NONE).unwrap()
    }

    // Whether the memory of each is registered.
    fn kinds(backups: &Backups, taken: &[BackupPage]) -> Vec<bool> {
        taken.iter().map(|page| backups.memory(page.slab).is_direct()).collect()
    }

    #[test]
    fn free_places_are_used_before_more_memory_is_taken() {
        let mut backups = Backups::default();
        let first = take(&mut backups, 3);
        assert_eq!((backups.held(), missing(&backups, 0), missing(&backups, 1)), (mib(3), 0, 1));
        backups.give(BackupLocation::Page(first[1]));
        backups.give(BackupLocation::Zero);
        assert_eq!(missing(&backups, 2), 1);
        let second = take(&mut backups, 2);
        assert_eq!((second[0], backups.held()), (first[1], mib(4)));
        assert!(!first.contains(&second[1]), "a place has one owner");
        assert_eq!(take(&mut backups, 0), []);
        assert_eq!(backups.held(), mib(4));
    }

    #[test]
    fn memory_goes_once_nothing_in_it_is_used() {
        let mut backups = Backups::default();
        let (one, two) = (take(&mut backups, 2), take(&mut backups, 2));
        backups.give(BackupLocation::Page(two[0]));
        backups.give(BackupLocation::Page(one[0]));
        backups.shrink();
        assert_eq!(backups.held(), mib(4), "half of each is used");
        backups.give(BackupLocation::Page(one[1]));
        backups.shrink();
        assert_eq!((backups.held(), missing(&backups, 1), missing(&backups, 2)), (mib(2), 0, 1));
        // What was written to the memory that stayed is still there.
        backups.memory(two[1].slab).write(two[1].offset(), &[9]).unwrap();
        let new = take(&mut backups, 3);
        assert!(!new.contains(&two[1]), "{new:?}");
        let mut byte = [0];
        backups.memory(two[1].slab).read(two[1].offset(), &mut byte).unwrap();
        assert_eq!(byte, [9]);
    }

    #[test]
    fn the_first_part_is_registered_up_to_the_limit() {
        let (mut backups, device) = (Backups::default(), device());
        let most = Bytes(5 * PAGE + 1);
        let first = backups.take((Form::Raw, 3), &device, most, Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &first), backups.direct()), (vec![true; 3], mib(3)));
        let second = backups.take((Form::Raw, 4), &device, most, Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &second), [true, true, false, false], "the limit is 5 pages");
        assert_eq!((backups.direct(), backups.held()), (mib(5), mib(7)));
        let third = backups.take((Form::Raw, 1), &device, most, Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &third), backups.direct()), (vec![false], mib(5)));
        // A place that is free is taken whatever its kind.
        backups.give(BackupLocation::Page(first[1]));
        let again = backups.take((Form::Raw, 1), &device, Bytes::ZERO, Limit::NONE).unwrap();
        assert_eq!((again, backups.held()), (vec![first[1]], mib(8)));
        let all = backups.take((Form::Raw, 2), &device, Bytes(u64::MAX), Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &all), backups.direct()), (vec![true; 2], mib(7)));
    }

    #[test]
    fn what_is_given_back_makes_room_for_more_that_is_registered() {
        let (mut backups, device) = (Backups::default(), device());
        let taken = backups.take((Form::Raw, 4), &device, mib(2), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &taken), [true, true, false, false]);
        backups.give(BackupLocation::Page(taken[0]));
        backups.shrink();
        assert_eq!(backups.direct(), mib(2), "half of it is used");
        backups.give(BackupLocation::Page(taken[1]));
        backups.shrink();
        assert_eq!((backups.direct(), backups.held()), (mib(0), mib(2)));
        let new = backups.take((Form::Raw, 3), &device, mib(2), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &new), [true, true, false]);
        assert_eq!((backups.direct(), backups.held()), (mib(2), mib(5)));
    }

    #[test]
    fn where_registering_is_refused_there_are_plain_pages() {
        let (books, _) = Device::dry_run(mib(1));
        let mut backups = Backups::default();
        let refused = backups.take((Form::Raw, 2), &books, mib(9), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &refused), [false, false]);
        // Another time it may be granted.
        let granted = backups.take((Form::Raw, 1), &device(), mib(9), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &granted), [true]);
        assert_eq!((backups.direct(), backups.held()), (mib(1), mib(3)));
    }

    #[test]
    fn a_slab_that_nothing_uses_takes_the_other_form() {
        let (mut backups, device) = (Backups::default(), device());
        let raw = take(&mut backups, 5);
        let packed = |backups: &mut Backups, pages| {
            backups.take((Form::Packed, pages), &device, Bytes::ZERO, Limit::NONE).unwrap()
        };
        let one = packed(&mut backups, 1);
        assert_eq!((backups.held(), one[0].form), (mib(6), Form::Packed), "the first is in use");
        for page in &raw {
            backups.give(BackupLocation::Page(*page));
        }
        assert_eq!(backups.missing(Form::Packed, 6, Bytes::ZERO), mib(0), "5 pages hold 6");
        assert_eq!(backups.missing(Form::Packed, 7, Bytes::ZERO), mib(1));
        let six = packed(&mut backups, 6);
        assert_eq!((backups.held(), six[0].slab), (mib(6), raw[0].slab));
        assert_eq!(missing(&backups, 1), 1, "no raw slot is left");
        for page in six.iter().chain(&one) {
            backups.give(BackupLocation::Page(*page));
        }
        assert_eq!(take(&mut backups, 6).len(), 6);
        assert_eq!(backups.held(), mib(6));
    }

    #[test]
    fn what_is_forgotten_gives_its_places_back() {
        let mut backups = Backups::default();
        let taken = take(&mut backups, 3);
        save(&mut backups, 1, 0, BackupLocation::Page(taken[0]));
        save(&mut backups, 1, 7, BackupLocation::Zero);
        save(&mut backups, 1, 8, BackupLocation::Page(taken[1]));
        save(&mut backups, 4, 0, BackupLocation::Page(taken[2]));
        assert_eq!(
            (backups.used_by(id(1)), backups.used_by(id(4)), backups.used_by(id(5))),
            (mib(2), mib(1), mib(0))
        );
        backups.check(mib(3), mib(3), &[]);
        backups.forget(id(1));
        backups.forget(id(1));
        assert_eq!((backups.used_by(id(1)), missing(&backups, 3)), (mib(0), 1));
        backups.check(mib(1), mib(3), &[]);
        backups.forget(id(4));
        backups.shrink();
        backups.check(mib(0), mib(0), &[]);
    }

    #[test]
    #[should_panic(expected = "every slot is free or used")]
    fn a_place_that_nobody_has_is_found() {
        let mut backups = Backups::default();
        let taken = take(&mut backups, 2);
        save(&mut backups, 0, 0, BackupLocation::Page(taken[0]));
        backups.check(mib(1), mib(2), &[]);
    }

    #[test]
    #[should_panic(expected = "is used twice")]
    fn a_place_that_two_pages_have_is_found() {
        let mut backups = Backups::default();
        let taken = take(&mut backups, 2);
        save(&mut backups, 0, 0, BackupLocation::Page(taken[0]));
        save(&mut backups, 0, 1, BackupLocation::Page(taken[0]));
        backups.check(mib(2), mib(2), &[]);
    }
}
