//! What callers hold, by address: a hash table made for the hit.
//!
//! An entry is half a cache line and everything that a free or a hit needs, so that a pair touches
//! one line that may be cold, however many blocks are live. Entries stay while their block rests on
//! a shelf; they refer to one another by address, so that the table may move them.

use crate::policy::GRAIN;

/// A block that was handed out, live or resting. Aligned, so that none lies across two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Handle {
    /// Zero where there is none.
    pub(crate) address: u64,
    /// While it rests: the next one on its shelf, or zero.
    pub(crate) next: u64,
    pub(crate) grains: u32,
    /// Its index in the arena.
    pub(crate) block: u32,
    /// While it rests: the stream that freed it.
    pub(crate) owner: u32,
    pub(crate) tag: u16,
    pub(crate) resting: bool,
}

const VACANT: Handle =
    Handle { address: 0, next: 0, grains: 0, block: 0, owner: 0, tag: 0, resting: false };

const LEAST_BITS: u32 = 6;

/// Open addressing with linear probing; at most half full.
pub(crate) struct Handles {
    slots: Vec<Handle>,
    bits: u32,
    count: usize,
}

impl Default for Handles {
    fn default() -> Handles {
        Handles { slots: vec![VACANT; 1 << LEAST_BITS], bits: LEAST_BITS, count: 0 }
    }
}

impl Handles {
    // Addresses are multiples of the grain; multiplication spreads them, its top bits are the best.
    fn home(&self, address: u64) -> usize {
        ((address / GRAIN).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits)) as usize
    }

    fn slot_of(&self, address: u64) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(address);
        loop {
            let found = self.slots[slot].address;
            if found == address {
                return (address != 0).then_some(slot);
            }
            if found == 0 {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut Handle> {
        let slot = self.slot_of(address)?;
        Some(&mut self.slots[slot])
    }

    pub(crate) fn insert(&mut self, handle: Handle) {
        debug_assert!(handle.address != 0, "no block begins at zero");
        if (self.count + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.place(handle);
        self.count += 1;
    }

    fn place(&mut self, handle: Handle) {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(handle.address);
        while self.slots[slot].address != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = handle;
    }

    fn grow(&mut self) {
        self.bits += 1;
        let mut larger = Vec::with_capacity(1 << self.bits);
        lowtide_device::prefer_huge(larger.spare_capacity_mut());
        larger.resize(1 << self.bits, VACANT);
        let old = std::mem::replace(&mut self.slots, larger);
        for handle in old.into_iter().filter(|handle| handle.address != 0) {
            self.place(handle);
        }
    }

    /// Takes an entry out and closes the gap, so that no probe ends early.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Handle> {
        let mut gap = self.slot_of(address)?;
        let removed = self.slots[gap];
        let mask = self.slots.len() - 1;
        let mut next = (gap + 1) & mask;
        while self.slots[next].address != 0 {
            let home = self.home(self.slots[next].address);
            // Whether the entry may stand in the gap: its home is not between gap and itself.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[gap] = VACANT;
        self.count -= 1;
        Some(removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Handle> {
        self.slots.iter().filter(|handle| handle.address != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_entry_is_half_a_cache_line() {
        assert_eq!(size_of::<Handle>(), 32);
    }

    #[test]
    fn it_does_what_a_map_does() {
        let (mut handles, mut model) = (Handles::default(), BTreeMap::new());
        let mut state = 9u64;
        println!("seed {state}");
        for turn in 0..200_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn.into());
            let address = (1 + (state >> 40) % 3000) * GRAIN;
            if model.remove(&address).is_some() {
                handles.remove(address).unwrap();
            } else {
                handles.insert(Handle { address, block: turn, ..VACANT });
                model.insert(address, turn);
            }
            let other = (1 + (state >> 20) % 3000) * GRAIN;
            assert_eq!(handles.get_mut(other).map(|found| found.block), model.get(&other).copied());
        }
        assert_eq!(handles.iter().count(), model.len());
        assert!(handles.get_mut(0).is_none());
    }
}
