//! The objects that are known before the walk: those that it begins with, those that the collector lists, and the
//! frozen ones where they can be read like those.

use std::collections::HashMap;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use crate::ask::object::{class_of, count_of, is_immortal};
use crate::ask::prefetch::prefetch;
use crate::ask::types::Types;
use crate::safety::own_memory::OutOfMemory;
use crate::start::collector::Collector;
use crate::walk::object_table::ObjectTable;
use crate::walk::walked::{List, Walked};

/// How many objects ahead they are prefetched by where they were before.
const FAR_AHEAD: usize = 64;

/// The objects of a walk as far as they are known before it: some that it begins with, and those
/// that the collector lists.
pub(crate) struct Listing<'k> {
    types: &'k mut Types,
    /// The first objects, by their addresses.
    first: HashMap<usize, u32>,
    /// A bit for the hash of each of them: nearly all objects are none of them.
    bits: [u64; 64],
    /// By node, up to `len`. The rest is where objects were before.
    addresses: Vec<usize>,
    len: usize,
    /// By node.
    lists: Vec<List>,
    /// The pages of all objects.
    table: ObjectTable,
    /// The nodes that only the calling thread asks, in order.
    for_caller: Vec<u32>,
    is_full: bool,
}

impl<'k> Listing<'k> {
    /// Begins with some objects. `before` has the addresses that objects had a moment ago, in the
    /// order in which they are shown, to prefetch them.
    pub(crate) fn new(
        types: &'k mut Types,
        first: impl IntoIterator<Item = usize>,
        before: Vec<usize>,
    ) -> Result<Listing<'k>, OutOfMemory> {
        let mut listing = Listing {
            types,
            first: HashMap::new(),
            bits: [0; 64],
            addresses: before,
            len: 0,
            lists: Vec::new(),
            table: ObjectTable::new()?,
            for_caller: Vec::new(),
            is_full: false,
        };
        // Nearly as many objects as before.
        let room = listing.addresses.len();
        listing.lists.try_reserve(room + room / 8)?;
        for address in first {
            if listing.first.contains_key(&address) {
                continue;
            }
            let node = listing.first.len() as u32;
            listing.first.insert(address, node);
            let (word, bit) = bit_of(address);
            listing.bits[word] |= bit;
            listing.for_caller.push(node);
            listing.push(address, List::Unknown)?;
        }
        Ok(listing)
    }

    /// Adds the objects that the collector lists, and the frozen ones if they can be read. Returns a heap of all
    /// objects, and the nodes that only the calling thread asks.
    pub(crate) fn all(mut self, collector: &Collector<'_>) -> PyResult<(Walked, Vec<u32>)> {
        let mut mortals = 0;
        let listed = collector.listed()?;
        // An audit hook may have run. A type may have been freed, and another be in its place.
        self.types.forget();
        listed.each(|object| self.show(object, List::Generation));
        let are_all = collector.each_frozen(|object| {
            let is_mortal = !is_immortal(count_of(object));
            mortals += usize::from(is_mortal);
            self.show(object, if is_mortal { List::Frozen } else { List::Unknown });
        });
        if self.is_full {
            return Err(OutOfMemory.into());
        }
        let (mut walked, for_caller) = self.known()?;
        walked.nodes.frozen_count = mortals;
        walked.nodes.frozen_seen = are_all;
        Ok((walked, for_caller))
    }

    /// Returns the same of the objects that were added so far.
    pub(crate) fn known(mut self) -> Result<(Walked, Vec<u32>), OutOfMemory> {
        self.addresses.truncate(self.len);
        Ok((Walked::new(self.addresses, self.lists, self.table)?, self.for_caller))
    }

    /// Adds an object of a list. Its type is read, but not its reference count, which may be one too
    /// high here.
    #[inline]
    fn show(&mut self, object: *mut PyObject, list: List) {
        let address = object.expose_provenance();
        if let Some(ahead) = self.addresses.get(self.len + FAR_AHEAD) {
            prefetch(*ahead);
        }
        let (word, bit) = bit_of(address);
        let known = if self.bits[word] & bit == 0 { None } else { self.first.get(&address) };
        let done = match known {
            Some(node) => {
                self.lists[*node as usize] = list;
                Ok(())
            }
            None => self.see(object, list),
        };
        self.is_full |= done.is_err();
    }

    #[inline]
    fn see(&mut self, object: *mut PyObject, list: List) -> Result<(), OutOfMemory> {
        if self.types.of(class_of(object)).reader.is_none() {
            self.for_caller.try_reserve(1)?;
            self.for_caller.push(self.len as u32);
        }
        self.push(object.expose_provenance(), list)
    }

    #[inline]
    fn push(&mut self, address: usize, list: List) -> Result<(), OutOfMemory> {
        self.table.add_page(address)?;
        self.lists.try_reserve(1)?;
        if let Some(at) = self.addresses.get_mut(self.len) {
            *at = address;
        } else {
            self.addresses.try_reserve(1)?;
            self.addresses.push(address);
        }
        self.lists.push(list);
        self.len += 1;
        Ok(())
    }
}

/// Returns the bit of an address.
#[inline]
fn bit_of(address: usize) -> (usize, u64) {
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    ((hash >> 6) as usize, 1 << (hash & 63))
}
