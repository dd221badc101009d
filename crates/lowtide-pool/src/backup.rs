//! Backups: the host copies of pages, each with its digest.
//!
//! Host memory is taken in slabs, each given back whole once nothing in it is used: first as much as
//! may be registered with the device, then plain pages. The content of a saved page is in a page of
//! a slab, or nowhere where it is all zeros.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_device::headroom::{self, HostGrant};
use lowtide_device::{Bytes, Device};

use crate::Result;
use crate::limit::{Limit, Progress};
use crate::memory::Memory;
use crate::room::RoomId;
use crate::turn_step::TurnStep;

/// The size of a page of backups and digests.
pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
/// The size of a slab.
const SLAB_PAGES: u64 = 256;

/// A page of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackupPage {
    pub(crate) slab: u32,
    pub(crate) page: u32,
}

impl BackupPage {
    /// Returns where the page begins in the memory of its slab.
    pub(crate) fn offset(self) -> Bytes {
        Bytes(u64::from(self.page) * PAGE)
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

/// Saved pages of one room, by offset.
pub(crate) type SavedPages = BTreeMap<u64, Saved>;

/// The backups of a pool.
#[derive(Default)]
pub(crate) struct Backups {
    slabs: BTreeMap<u32, Slab>,
    free: BTreeSet<BackupPage>,
    rooms: BTreeMap<RoomId, SavedPages>,
}

struct Slab {
    memory: Memory,
    /// The number of pages that are used or free.
    pages: u32,
}

impl Slab {
    fn size(&self) -> Bytes {
        Bytes(u64::from(self.pages) * PAGE)
    }
}

impl Backups {
    /// Returns the saved pages of a room.
    pub(crate) fn pages(&mut self, room: RoomId) -> &mut SavedPages {
        self.rooms.entry(room).or_default()
    }

    /// Returns a saved page of a room.
    pub(crate) fn saved(&self, room: RoomId, offset: u64) -> Option<&Saved> {
        self.rooms.get(&room)?.get(&offset)
    }

    /// Computes the digest of a backup page on the host.
    pub(crate) fn digest_of(&self, page: BackupPage) -> Result<Digest> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.memory(page.slab).read(page.offset(), &mut bytes)?;
        Ok(Keys::of_this_process().digest(&bytes))
    }

    /// Returns the host memory that a room's backup uses.
    pub(crate) fn used_by(&self, room: RoomId) -> Bytes {
        let pages = self.rooms.get(&room).into_iter().flat_map(BTreeMap::values);
        let stored = pages.filter(|saved| matches!(saved.location, BackupLocation::Page(_)));
        Bytes(stored.count() as u64 * PAGE)
    }

    /// Returns the host memory taken.
    pub(crate) fn held(&self) -> Bytes {
        self.slabs.values().map(Slab::size).sum()
    }

    /// Returns the part of it that is registered with the device.
    pub(crate) fn direct(&self) -> Bytes {
        self.slabs.values().filter(|slab| slab.memory.is_direct()).map(Slab::size).sum()
    }

    /// Returns how many of so many pages need memory that is not there yet.
    pub(crate) fn missing(&self, pages: u64) -> u64 {
        pages.saturating_sub(self.free.len() as u64)
    }

    /// Takes so many pages, in order; those of new slabs last. No more than `direct_most` of all slabs
    /// is registered with the device. Memory for all of them is granted before the first slab is made.
    /// The limit is asked before each slab.
    ///
    /// # Errors
    /// Where the host has no room, or the limit says to stop; no page is taken then.
    pub(crate) fn take(
        &mut self,
        pages: u64,
        device: &Device,
        direct_most: Bytes,
        limit: Limit<'_>,
    ) -> Result<Vec<BackupPage>> {
        let mut missing = self.missing(pages);
        let total = Bytes(missing * PAGE);
        if missing == 0 {
            return Ok(self.take_free(pages));
        }
        let mut grant = headroom::grant(total)?;
        let mut direct = direct_most.saturating_sub(self.direct()).0 / PAGE;
        while missing > 0 {
            let progress = || Progress { done: total - Bytes(missing * PAGE), total };
            limit.ask(TurnStep::Planning, progress)?;
            let slab = direct_slab(device, missing.min(direct), &mut grant)?;
            // Where one is refused the next would be too, each after its pages were made ready.
            direct = slab.as_ref().map_or(0, |slab| direct - u64::from(slab.pages));
            let slab = slab.map_or_else(|| plain_slab(missing, &mut grant), Ok)?;
            missing -= u64::from(slab.pages);
            self.add(slab);
        }
        Ok(self.take_free(pages))
    }

    /// Makes slabs that are registered with the device, for so many pages or as many as it takes.
    ///
    /// # Errors
    /// Where the host has no room.
    pub(crate) fn registered(device: &Device, pages: u64) -> Result<Backups> {
        let (mut made, mut missing) = (Backups::default(), pages);
        let mut grant = headroom::grant(Bytes(pages * PAGE))?;
        while let Some(slab) = direct_slab(device, missing, &mut grant)? {
            missing -= u64::from(slab.pages);
            made.add(slab);
        }
        Ok(made)
    }

    /// Takes over slabs in which nothing is saved.
    pub(crate) fn join(&mut self, unused: Backups) {
        debug_assert!(unused.rooms.is_empty(), "nothing is saved there");
        unused.slabs.into_values().for_each(|slab| self.add(slab));
    }

    fn add(&mut self, slab: Slab) {
        let number = self.slabs.last_key_value().map_or(0, |(number, _)| number + 1);
        self.free.extend((0..slab.pages).map(|page| BackupPage { slab: number, page }));
        self.slabs.insert(number, slab);
    }

    fn take_free(&mut self, pages: u64) -> Vec<BackupPage> {
        let taken: Vec<BackupPage> = self.free.iter().copied().take(pages as usize).collect();
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

    /// Takes back a page that was taken for a copy that did not arrive. One that was never written has
    /// no memory yet: it is not used again, so that none stays granted for it.
    pub(crate) fn give_up(&mut self, page: BackupPage) {
        let slab = self.slabs.get_mut(&page.slab).expect("the slab of a page that was taken");
        if slab.memory.give_up(page.offset()) {
            slab.pages -= 1;
        } else {
            self.free.insert(page);
        }
    }

    /// Forgets what was saved of a room.
    pub(crate) fn forget(&mut self, room: RoomId) {
        for saved in self.rooms.remove(&room).unwrap_or_default().into_values() {
            self.give(saved.location);
        }
    }

    /// Gives back slabs that nothing uses.
    pub(crate) fn shrink(&mut self) {
        let idle = |(number, slab): (&u32, &Slab)| {
            let page = |page| BackupPage { slab: *number, page };
            let free = self.free.range(page(0)..=page(u32::MAX)).count() as u32;
            (free == slab.pages).then_some(*number)
        };
        let idle: Vec<u32> = self.slabs.iter().filter_map(idle).collect();
        for number in idle {
            self.free.retain(|page| page.slab != number);
            self.slabs.remove(&number);
        }
    }

    /// Checks every invariant; panics where one does not hold.
    pub(crate) fn check(&self, used: Bytes, held: Bytes) {
        let sum: Bytes = self.rooms.keys().map(|room| self.used_by(*room)).sum();
        assert_eq!(sum, used, "backups in use");
        assert_eq!(self.held(), held, "host memory taken");
        assert_eq!(sum.0 + self.free.len() as u64 * PAGE, held.0, "every page is free or used");
        let mut seen = self.free.clone();
        for saved in self.rooms.values().flat_map(BTreeMap::values) {
            if let BackupLocation::Page(page) = saved.location {
                assert!(seen.insert(page), "{page:?} is used twice");
            }
        }
    }
}

// A slab that the device knows; none where it refuses, since plain pages serve as well.
fn direct_slab(device: &Device, pages_most: u64, grant: &mut HostGrant) -> Result<Option<Slab>> {
    let pages = pages_most.min(SLAB_PAGES);
    if pages == 0 {
        return Ok(None);
    }
    match Memory::direct(device, Bytes(pages * PAGE), grant) {
        Ok(memory) => Ok(Some(Slab { memory, pages: pages as u32 })),
        Err(error @ lowtide_device::Error::NoHostHeadroom { .. }) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "backups could not be registered; they are plain pages instead");
            Ok(None)
        }
    }
}

fn plain_slab(pages_most: u64, grant: &mut HostGrant) -> Result<Slab> {
    let pages = pages_most.min(SLAB_PAGES);
    let memory = Memory::plain(grant.split(Bytes(pages * PAGE)))?;
    Ok(Slab { memory, pages: pages as u32 })
}

#[cfg(test)]
mod tests {
    use lowtide_device::HostOptions;

    use super::*;
    use crate::tag::Tag;

    fn save(backups: &mut Backups, room: u16, page: u64, location: BackupLocation) {
        let saved = Saved { digest: Digest::default(), location };
        backups.pages(id(room)).insert(page * PAGE, saved);
    }

    fn id(room: u16) -> RoomId {
        RoomId::new(Tag::of_number(room.into()), true)
    }

    fn mib(pages: u64) -> Bytes {
        Bytes(pages * PAGE)
    }

    fn device() -> Device {
        Device::host(HostOptions { budget: Some(mib(1)), small_pages: true }).unwrap()
    }

    // Plain pages.
    fn take(backups: &mut Backups, pages: u64) -> Vec<BackupPage> {
        backups.take(pages, &device(), Bytes::ZERO, Limit::NONE).unwrap()
    }

    // Whether the memory of each is registered.
    fn kinds(backups: &Backups, taken: &[BackupPage]) -> Vec<bool> {
        taken.iter().map(|page| backups.memory(page.slab).is_direct()).collect()
    }

    #[test]
    fn free_places_are_used_before_more_memory_is_taken() {
        let mut backups = Backups::default();
        let first = take(&mut backups, 3);
        assert_eq!((backups.held(), backups.missing(0), backups.missing(1)), (mib(3), 0, 1));
        backups.give(BackupLocation::Page(first[1]));
        backups.give(BackupLocation::Zero);
        assert_eq!(backups.missing(2), 1);
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
        assert_eq!((backups.held(), backups.missing(1), backups.missing(2)), (mib(2), 0, 1));
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
        let first = backups.take(3, &device, most, Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &first), backups.direct()), (vec![true; 3], mib(3)));
        let second = backups.take(4, &device, most, Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &second), [true, true, false, false], "the limit is 5 pages");
        assert_eq!((backups.direct(), backups.held()), (mib(5), mib(7)));
        let third = backups.take(1, &device, most, Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &third), backups.direct()), (vec![false], mib(5)));
        // A place that is free is taken whatever its kind.
        backups.give(BackupLocation::Page(first[1]));
        let again = backups.take(1, &device, Bytes::ZERO, Limit::NONE).unwrap();
        assert_eq!((again, backups.held()), (vec![first[1]], mib(8)));
        let all = backups.take(2, &device, Bytes(u64::MAX), Limit::NONE).unwrap();
        assert_eq!((kinds(&backups, &all), backups.direct()), (vec![true; 2], mib(7)));
    }

    #[test]
    fn what_is_given_back_makes_room_for_more_that_is_registered() {
        let (mut backups, device) = (Backups::default(), device());
        let taken = backups.take(4, &device, mib(2), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &taken), [true, true, false, false]);
        backups.give(BackupLocation::Page(taken[0]));
        backups.shrink();
        assert_eq!(backups.direct(), mib(2), "half of it is used");
        backups.give(BackupLocation::Page(taken[1]));
        backups.shrink();
        assert_eq!((backups.direct(), backups.held()), (mib(0), mib(2)));
        let new = backups.take(3, &device, mib(2), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &new), [true, true, false]);
        assert_eq!((backups.direct(), backups.held()), (mib(2), mib(5)));
    }

    #[test]
    fn where_registering_is_refused_there_are_plain_pages() {
        let (books, _) = Device::dry_run(mib(1));
        let mut backups = Backups::default();
        let refused = backups.take(2, &books, mib(9), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &refused), [false, false]);
        // Another time it may be granted.
        let granted = backups.take(1, &device(), mib(9), Limit::NONE).unwrap();
        assert_eq!(kinds(&backups, &granted), [true]);
        assert_eq!((backups.direct(), backups.held()), (mib(1), mib(3)));
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
        backups.check(mib(3), mib(3));
        backups.forget(id(1));
        backups.forget(id(1));
        assert_eq!((backups.used_by(id(1)), backups.missing(3)), (mib(0), 1));
        backups.check(mib(1), mib(3));
        backups.forget(id(4));
        backups.shrink();
        backups.check(mib(0), mib(0));
    }

    #[test]
    #[should_panic(expected = "every page is free or used")]
    fn a_place_that_nobody_has_is_found() {
        let mut backups = Backups::default();
        let taken = take(&mut backups, 2);
        save(&mut backups, 0, 0, BackupLocation::Page(taken[0]));
        backups.check(mib(1), mib(2));
    }

    #[test]
    #[should_panic(expected = "is used twice")]
    fn a_place_that_two_pages_have_is_found() {
        let mut backups = Backups::default();
        let taken = take(&mut backups, 2);
        save(&mut backups, 0, 0, BackupLocation::Page(taken[0]));
        save(&mut backups, 0, 1, BackupLocation::Page(taken[0]));
        backups.check(mib(2), mib(2));
    }
}
