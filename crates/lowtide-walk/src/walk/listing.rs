//! The objects that the collector lists, and the frozen ones where they can be read like those.
//!
//! They are read in place where that is possible (`start/collector_lists.rs`). Elsewhere the collector makes a
//! list of them, which must not exist while other code runs: that code may be filling a tuple, and
//! would notice that somebody else refers to it. So the list is freed at once, and only addresses are
//! kept. Frozen objects are not in it: the walk looks for them (`start/frozen.rs`).

use std::collections::HashMap;
use std::ptr::with_exposed_provenance;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::ask::object::{AHEAD, class_of, count_of, is_immortal};
use crate::ask::prefetch::prefetch;
use crate::ask::types::Kinds;
use crate::safety::out_of_memory::OutOfMemory;
use crate::start::collector_lists::{Generations, reported_frozen};
use crate::start::interpreter::Interpreter;
use crate::start::question::Question;
use crate::walk::object_table::Table;

/// How many objects ahead they are prefetched by where they were before.
const FAR_AHEAD: usize = 64;

/// Where the collector has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// In no list, as far as is known.
    Unknown,
    /// In a generation.
    Generation,
    /// Among the frozen objects. An immortal one that is there was not frozen by anybody, and is none.
    Frozen,
}

/// The objects of a walk as far as they are known before it: some that it begins with, and those
/// that the collector lists.
pub(crate) struct Listing<'k> {
    kinds: &'k mut Kinds,
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
    table: Table,
    /// The nodes that only the calling thread asks, in order.
    told: Vec<u32>,
    is_full: bool,
}

/// What is known of the objects before the walk.
pub(crate) struct Listed {
    pub(crate) addresses: Vec<usize>,
    /// By node.
    pub(crate) lists: Vec<List>,
    pub(crate) table: Table,
    /// The nodes that only the calling thread asks, in order.
    pub(crate) told: Vec<u32>,
    /// How many objects are frozen; `None` if they could not be read.
    pub(crate) frozen: Option<usize>,
}

impl<'k> Listing<'k> {
    /// Begins with some objects. `before` has the addresses that objects had a moment ago, in the
    /// order in which they are shown, to prefetch them.
    pub(crate) fn new(
        kinds: &'k mut Kinds,
        first: impl IntoIterator<Item = usize>,
        before: Vec<usize>,
    ) -> Result<Listing<'k>, OutOfMemory> {
        let mut listing = Listing {
            kinds,
            first: HashMap::new(),
            bits: [0; 64],
            addresses: before,
            len: 0,
            lists: Vec::new(),
            table: Table::new()?,
            told: Vec::new(),
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
            listing.told.push(node);
            listing.push(address, List::Unknown)?;
        }
        Ok(listing)
    }

    /// Adds the objects that the collector lists, and the frozen ones if they can be read.
    pub(crate) fn all(mut self, question: &Question<'_>) -> PyResult<Listed> {
        let mut mortals = 0;
        let are_all = if let Some(generations) = &question.generations {
            generations.each(|object| self.show(object, List::Generation));
            generations.each_frozen(|object| {
                let is_mortal = !is_immortal(count_of(object));
                mortals += usize::from(is_mortal);
                self.show(object, if is_mortal { List::Frozen } else { List::Unknown });
            })
        } else {
            let list = list(&question.interpreter)?;
            // An audit hook may have run. A type may have been freed, and another be in its place.
            self.kinds.forget();
            each_in(&list, |object| self.show(object, List::Generation));
            false
        };
        if self.is_full {
            return Err(OutOfMemory.into());
        }
        self.addresses.truncate(self.len);
        let Listing { addresses, lists, table, told, .. } = self;
        Ok(Listed { addresses, lists, table, told, frozen: are_all.then_some(mortals) })
    }

    /// Adds an object of a list. Its type is read, but not its reference count, which may be one too
    /// high here.
    #[inline]
    fn show(&mut self, object: *mut PyObject, list: List) {
        let address = object.expose_provenance();
        if let Some(ahead) = self.addresses.get(self.len + FAR_AHEAD) {
            prefetch(with_exposed_provenance::<u8>(*ahead));
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
        if self.kinds.of(class_of(object)).reader.is_none() {
            self.told.try_reserve(1)?;
            self.told.push(self.len as u32);
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

/// Calls `show` with every object that the collector lists, and with the frozen ones if they can be read.
/// Returns whether that is so, or none are frozen. `show` must not run Python code, and makes no object.
pub(crate) fn each(
    interpreter: &Interpreter<'_>,
    generations: Option<&Generations>,
    mut show: impl FnMut(*mut PyObject),
) -> PyResult<bool> {
    let are_none = reported_frozen(interpreter, generations)? == Some(0);
    each_listed(interpreter, generations, &mut show)?;
    Ok(generations.is_some_and(|generations| generations.each_frozen(show)) || are_none)
}

/// Calls `show` with every object that the collector lists. It must not run Python code, and makes no object.
pub(crate) fn each_listed(
    interpreter: &Interpreter<'_>,
    generations: Option<&Generations>,
    show: impl FnMut(*mut PyObject),
) -> PyResult<()> {
    match generations {
        Some(generations) => generations.each(show),
        None => each_in(&list(interpreter)?, show),
    }
    Ok(())
}

fn each_in(list: &Bound<'_, PyList>, mut show: impl FnMut(*mut PyObject)) {
    for at in 0..list.len() {
        if at + AHEAD < list.len() {
            prefetch(object_in(list, at + AHEAD));
        }
        show(object_in(list, at));
    }
}

fn list<'py>(interpreter: &Interpreter<'py>) -> PyResult<Bound<'py, PyList>> {
    Ok(interpreter.get_objects.call0()?.cast_into::<PyList>()?)
}

fn object_in(list: &Bound<'_, PyList>, at: usize) -> *mut PyObject {
    assert!(at < list.len(), "a place of the list");
    // SAFETY: the index is less than the list's length.
    unsafe { ffi::PyList_GetItem(list.as_ptr(), at.cast_signed()) }
}
