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
