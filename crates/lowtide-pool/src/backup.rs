//! Backups: the host copies of pages, each with its digest.
//!
//! Host memory is taken in slabs, each given back whole once nothing in it is used. A page's place
//! is a slot in a slab, or no place at all where it is all zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lowtide_device::digest::{Digest, PAGE_BYTES};
use lowtide_device::{Bytes, HostPages};

/// A page of backups and digests.
pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
/// What is given back at once.
const SLAB_PAGES: u64 = 256;

/// A place for one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) slab: u32,
    pub(crate) page: u32,
}

impl Slot {
    pub(crate) fn offset(self) -> Bytes {
        Bytes(u64::from(self.page) * PAGE)
    }
}

/// Where a page's content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is all zeros.
    Zero,
    Slot(Slot),
}

/// A page as it was when it was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) digest: Digest,
    pub(crate) place: Place,
}

/// Saved pages of one room, by offset.
pub(crate) type Pages = BTreeMap<u64, Saved>;

/// All backups of a pool.
#[derive(Default)]
pub(crate) struct Backups {
    slabs: BTreeMap<u32, Slab>,
    free: BTreeSet<Slot>,
    /// By room.
    rooms: BTreeMap<usize, Pages>,
}

struct Slab {
    memory: Arc<HostPages>,
    pages: u32,
}

impl Backups {
    /// The saved pages of a room.
    pub(crate) fn pages(&mut self, room: usize) -> &mut Pages {
        self.rooms.entry(room).or_default()
    }

    /// Slots in use by a room.
    pub(crate) fn used_by(&self, room: usize) -> Bytes {
        let pages = self.rooms.get(&room).into_iter().flat_map(BTreeMap::values);
        let stored = pages.filter(|saved| matches!(saved.place, Place::Slot(_)));
        Bytes(stored.count() as u64 * PAGE)
    }

    /// Host memory taken.
    pub(crate) fn held(&self) -> Bytes {
        Bytes(self.slabs.values().map(|slab| u64::from(slab.pages) * PAGE).sum())
    }

    /// How many more pages need memory that is not there yet.
    pub(crate) fn missing(&self, pages: u64) -> u64 {
        pages.saturating_sub(self.free.len() as u64)
    }

    /// So many slots, in order; those of new slabs last.
    ///
    /// # Errors
    /// Where the host has no room; nothing is taken then.
    pub(crate) fn take(&mut self, pages: u64) -> lowtide_device::Result<Vec<Slot>> {
        let mut missing = self.missing(pages);
        while missing > 0 {
            let count = missing.min(SLAB_PAGES) as u32;
            missing -= u64::from(count);
            let memory = Arc::new(HostPages::new(Bytes(u64::from(count) * PAGE))?);
            let number = self.slabs.last_key_value().map_or(0, |(number, _)| number + 1);
            self.slabs.insert(number, Slab { memory, pages: count });
            self.free.extend((0..count).map(|page| Slot { slab: number, page }));
        }
        let taken: Vec<Slot> = self.free.iter().copied().take(pages as usize).collect();
        self.free.retain(|slot| taken.binary_search(slot).is_err());
        Ok(taken)
    }

    /// The memory of a slab.
    pub(crate) fn memory(&self, slab: u32) -> &Arc<HostPages> {
        &self.slabs[&slab].memory
    }

    /// A place is no longer needed.
    pub(crate) fn give(&mut self, place: Place) {
        if let Place::Slot(slot) = place {
            self.free.insert(slot);
        }
    }

    /// Forgets what was saved of a room.
    pub(crate) fn forget(&mut self, room: usize) {
        for saved in self.rooms.remove(&room).unwrap_or_default().into_values() {
            self.give(saved.place);
        }
    }

    /// Gives back slabs that nothing uses.
    pub(crate) fn shrink(&mut self) {
        let idle = |(number, slab): (&u32, &Slab)| {
            let slots = Slot { slab: *number, page: 0 }..=Slot { slab: *number, page: u32::MAX };
            let free = self.free.range(slots).count() as u32;
            (free == slab.pages).then_some(*number)
        };
        let idle: Vec<u32> = self.slabs.iter().filter_map(idle).collect();
        for number in idle {
            self.free.retain(|slot| slot.slab != number);
            self.slabs.remove(&number);
        }
    }

    /// What must always hold; panics where it does not.
    pub(crate) fn check(&self, used: Bytes, held: Bytes) {
        let sum: Bytes = self.rooms.keys().map(|room| self.used_by(*room)).sum();
        assert_eq!(sum, used, "backups in use");
        assert_eq!(self.held(), held, "host memory taken");
        assert_eq!(sum.0 + self.free.len() as u64 * PAGE, held.0, "every slot is free or used");
        let mut seen = self.free.clone();
        for saved in self.rooms.values().flat_map(BTreeMap::values) {
            if let Place::Slot(slot) = saved.place {
                assert!(seen.insert(slot), "{slot:?} is used twice");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(backups: &mut Backups, room: usize, page: u64, place: Place) {
        backups.pages(room).insert(page * PAGE, Saved { digest: Digest::default(), place });
    }

    fn mib(pages: u64) -> Bytes {
        Bytes(pages * PAGE)
    }

    #[test]
    fn free_places_are_used_before_more_memory_is_taken() {
        let mut backups = Backups::default();
        let first = backups.take(3).unwrap();
        assert_eq!((backups.held(), backups.missing(0), backups.missing(1)), (mib(3), 0, 1));
        backups.give(Place::Slot(first[1]));
        backups.give(Place::Zero);
        assert_eq!(backups.missing(2), 1);
        let second = backups.take(2).unwrap();
        assert_eq!((second[0], backups.held()), (first[1], mib(4)));
        assert!(!first.contains(&second[1]), "a place has one owner");
        assert_eq!(backups.take(0).unwrap(), []);
        assert_eq!(backups.held(), mib(4));
    }

    #[test]
    fn memory_goes_once_nothing_in_it_is_used() {
        let mut backups = Backups::default();
        let (one, two) = (backups.take(2).unwrap(), backups.take(2).unwrap());
        backups.give(Place::Slot(two[0]));
        backups.give(Place::Slot(one[0]));
        backups.shrink();
        assert_eq!(backups.held(), mib(4), "half of each is used");
        backups.give(Place::Slot(one[1]));
        backups.shrink();
        assert_eq!((backups.held(), backups.missing(1), backups.missing(2)), (mib(2), 0, 1));
        // What was written to the memory that stayed is still there.
        backups.memory(two[1].slab).write(two[1].offset(), Bytes(1), |byte| byte[0] = 9).unwrap();
        let new = backups.take(3).unwrap();
        assert!(!new.contains(&two[1]), "{new:?}");
        let read = |byte: &[u8]| byte[0];
        assert_eq!(backups.memory(two[1].slab).read(two[1].offset(), Bytes(1), read).unwrap(), 9);
    }

    #[test]
    fn what_is_forgotten_gives_its_places_back() {
        let mut backups = Backups::default();
        let slots = backups.take(3).unwrap();
        save(&mut backups, 1, 0, Place::Slot(slots[0]));
        save(&mut backups, 1, 7, Place::Zero);
        save(&mut backups, 1, 8, Place::Slot(slots[1]));
        save(&mut backups, 4, 0, Place::Slot(slots[2]));
        assert_eq!(
            (backups.used_by(1), backups.used_by(4), backups.used_by(5)),
            (mib(2), mib(1), mib(0))
        );
        backups.check(mib(3), mib(3));
        backups.forget(1);
        backups.forget(1);
        assert_eq!((backups.used_by(1), backups.missing(3)), (mib(0), 1));
        backups.check(mib(1), mib(3));
        backups.forget(4);
        backups.shrink();
        backups.check(mib(0), mib(0));
    }

    #[test]
    #[should_panic(expected = "every slot is free or used")]
    fn a_place_that_nobody_has_is_found() {
        let mut backups = Backups::default();
        let slots = backups.take(2).unwrap();
        save(&mut backups, 0, 0, Place::Slot(slots[0]));
        backups.check(mib(1), mib(2));
    }

    #[test]
    #[should_panic(expected = "is used twice")]
    fn a_place_that_two_pages_have_is_found() {
        let mut backups = Backups::default();
        let slots = backups.take(2).unwrap();
        save(&mut backups, 0, 0, Place::Slot(slots[0]));
        save(&mut backups, 0, 1, Place::Slot(slots[0]));
        backups.check(mib(2), mib(2));
    }
}
