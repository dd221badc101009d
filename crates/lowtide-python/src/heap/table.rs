//! Addresses to numbers, for as many objects as an interpreter has.
//!
//! Open addressing, one cache line for each look-up. Beside its number an object has room for a
//! count: the references to it that nobody has explained yet.

/// What is known of an address.
#[derive(Clone, Copy)]
struct Slot {
    /// 0 where the slot is free: no object is there.
    address: usize,
    number: u32,
    /// References that no edge has explained.
    left: i32,
}

const FREE: Slot = Slot { address: 0, number: 0, left: 0 };

/// Addresses and their numbers.
pub(crate) struct Table {
    slots: Vec<Slot>,
    len: usize,
    /// How far a product is shifted to be a place in `slots`.
    shift: u32,
}

/// Where an address is, or would be.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Table {
    /// With room for so many before it has to grow.
    pub(crate) fn with_room(addresses: usize) -> Table {
        let slots = (addresses * 3 / 2).max(64).next_power_of_two();
        Table { slots: vec![FREE; slots], len: 0, shift: u64::BITS - slots.ilog2() }
    }

    /// Asks for the cache line that an address will be looked for in.
    pub(crate) fn prefetch(&self, address: usize) {
        super::walk::prefetch(&raw const self.slots[self.home(address)]);
    }

    /// The number of an address.
    pub(crate) fn get(&self, address: usize) -> Option<u32> {
        let Place(at) = self.find(address);
        (self.slots[at].address == address).then(|| self.slots[at].number)
    }

    /// Where an address is, and its number, where it has one.
    pub(crate) fn place(&mut self, address: usize) -> (Place, Option<u32>) {
        if self.len * 3 >= self.slots.len() * 2 {
            self.grow();
        }
        let Place(at) = self.find(address);
        let slot = self.slots[at];
        (Place(at), (slot.address == address).then_some(slot.number))
    }

    /// Gives the address of a free place a number.
    pub(crate) fn fill(&mut self, Place(at): Place, address: usize, number: u32, left: i32) {
        debug_assert_eq!(self.slots[at].address, 0, "the place is free");
        self.slots[at] = Slot { address, number, left };
        self.len += 1;
    }

    /// One of the references is explained.
    pub(crate) fn explain(&mut self, Place(at): Place) {
        self.slots[at].left -= 1;
    }

    /// Every number that has references left, and how many.
    pub(crate) fn unexplained(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let used = self.slots.iter().filter(|slot| slot.left > 0);
        used.map(|slot| (slot.number, slot.left.unsigned_abs()))
    }

    fn home(&self, address: usize) -> usize {
        // Objects lie at multiples of 16.
        let product = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product >> self.shift) as usize
    }

    fn find(&self, address: usize) -> Place {
        let mut at = self.home(address);
        while self.slots[at].address != 0 && self.slots[at].address != address {
            at = (at + 1) & (self.slots.len() - 1);
        }
        Place(at)
    }

    fn grow(&mut self) {
        let mut larger = Table::with_room(self.slots.len());
        debug_assert!(larger.slots.len() > self.slots.len());
        for slot in self.slots.iter().filter(|slot| slot.address != 0) {
            let Place(at) = larger.find(slot.address);
            larger.slots[at] = *slot;
        }
        larger.len = self.len;
        *self = larger;
    }
}
