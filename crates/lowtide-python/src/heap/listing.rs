//! The objects that the collector lists.
//!
//! A list of them must not exist while other code runs: that code may be filling a tuple, and would
//! notice that somebody else refers to it. So the list is freed at once, and only addresses are
//! kept.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::with_exposed_provenance;
use std::sync::OnceLock;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::frozen;
use super::kinds::{Kinds, class_of};
use super::object::{AHEAD, prefetch};
use super::out_of_memory::OutOfMemory;
use super::question::Question;
use super::table::Table;

/// How many objects ahead they are prefetched by where they were before.
const FAR_AHEAD: usize = 64;

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
    /// The pages of all objects.
    table: Table,
    /// The nodes that only the calling thread asks, in order.
    told: Vec<u32>,
    /// How many objects were shown, and at which of these positions one of the first was.
    shown: usize,
    again: Vec<(usize, u32)>,
    is_full: bool,
}

/// What is known of the objects before the walk.
pub(crate) struct Listed {
    pub(crate) addresses: Vec<usize>,
    pub(crate) table: Table,
    /// The nodes that only the calling thread asks, in order.
    pub(crate) told: Vec<u32>,
    /// How many objects are not there because the collector lists them.
    pub(crate) first: usize,
    /// Those of them that the collector lists, nevertheless.
    pub(crate) also: Vec<u32>,
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
            table: Table::new()?,
            told: Vec::new(),
            shown: 0,
            again: Vec::new(),
            is_full: false,
        };
        for address in first {
            if listing.first.contains_key(&address) {
                continue;
            }
            let node = listing.first.len() as u32;
            listing.first.insert(address, node);
            let (word, bit) = bit_of(address);
            listing.bits[word] |= bit;
            listing.told.push(node);
            listing.push(address)?;
        }
        Ok(listing)
    }

    /// Adds the objects that the collector lists. `frozen` is the number of those that it tracks and
    /// does not list.
    pub(crate) fn all(mut self, question: &Question<'_>, frozen: usize) -> PyResult<Listed> {
        if let Some(visit) = visit_objects().filter(|_| question.interpreter.knows_layout) {
            each_by(visit, |object| self.show(object));
        }
        // Frozen objects are shown last.
        let listed = self.shown.checked_sub(frozen).filter(|listed| self.is_ring(*listed));
        let listed = listed.filter(|listed| *listed > 0);
        self.keep(listed.unwrap_or(0));
        if listed.is_none() {
            self.shown = 0;
            let list = list(question)?;
            // An audit hook may have run. A type may have been freed, and another be in its place.
            self.kinds.forget();
            for at in 0..list.len() {
                if at + AHEAD < list.len() {
                    prefetch(object_in(&list, at + AHEAD));
                }
                self.show(object_in(&list, at));
            }
        }
        if self.is_full {
            return Err(OutOfMemory.into());
        }
        self.addresses.truncate(self.len);
        let Listing { addresses, table, told, first, again, .. } = self;
        let also = again.into_iter().map(|(_, node)| node).collect();
        Ok(Listed { addresses, table, told, first: first.len(), also })
    }

    /// Adds an object. Its type is read, but not its reference count, which may be one too high here.
    #[inline]
    fn show(&mut self, object: *mut PyObject) {
        let address = object.expose_provenance();
        if let Some(ahead) = self.addresses.get(self.len + FAR_AHEAD) {
            prefetch(with_exposed_provenance::<u8>(*ahead));
        }
        let (word, bit) = bit_of(address);
        let known = if self.bits[word] & bit == 0 { None } else { self.first.get(&address) };
        let done = match known {
            Some(node) => self.see_again(*node),
            None => self.see(object),
        };
        self.is_full |= done.is_err();
        self.shown += 1;
    }

    fn see_again(&mut self, node: u32) -> Result<(), OutOfMemory> {
        self.again.try_reserve(1)?;
        self.again.push((self.shown, node));
        Ok(())
    }

    #[inline]
    fn see(&mut self, object: *mut PyObject) -> Result<(), OutOfMemory> {
        if self.kinds.of(class_of(object)).reader.is_none() {
            self.told.try_reserve(1)?;
            self.told.push(self.len as u32);
        }
        self.push(object.expose_provenance())
    }

    #[inline]
    fn push(&mut self, address: usize) -> Result<(), OutOfMemory> {
        self.table.add_page(address)?;
        if let Some(at) = self.addresses.get_mut(self.len) {
            *at = address;
        } else {
            self.addresses.try_reserve(1)?;
            self.addresses.push(address);
        }
        self.len += 1;
        Ok(())
    }

    /// Returns the number of objects up to those that were shown from this one on, and how many of the
    /// first ones were shown before.
    fn up_to(&self, shown: usize) -> (usize, usize) {
        let again = self.again.partition_point(|(at, _)| *at < shown);
        (self.first.len() + shown - again, again)
    }

    /// Forgets what was shown from this one on.
    fn keep(&mut self, shown: usize) {
        let again;
        (self.len, again) = self.up_to(shown);
        self.again.truncate(again);
        self.told.truncate(self.told.partition_point(|node| (*node as usize) < self.len));
    }

    /// Returns whether the objects that were shown from this one on are the ring of frozen objects.
    fn is_ring(&self, listed: usize) -> bool {
        let (mut at, mut again) = self.up_to(listed);
        let mut tail = Vec::new();
        for shown in listed..self.shown {
            if let Some((_, node)) = self.again.get(again).filter(|(at, _)| *at == shown) {
                tail.push(self.addresses[*node as usize]);
                again += 1;
            } else {
                tail.push(self.addresses[at]);
                at += 1;
            }
        }
        let Some(last) = tail.last() else { return true };
        frozen::ring(*last, tail.len()).is_some_and(|ring| ring == tail)
    }
}

/// Returns the bit of an address.
#[inline]
fn bit_of(address: usize) -> (usize, u64) {
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    ((hash >> 6) as usize, 1 << (hash & 63))
}

/// Calls `show` with every object that the collector lists, and some that it does not. `show` must
/// not run Python code.
pub(crate) fn each(question: &Question<'_>, mut show: impl FnMut(*mut PyObject)) -> PyResult<()> {
    if question.interpreter.knows_layout
        && let Some(visit) = visit_objects()
    {
        each_by(visit, show);
        return Ok(());
    }
    let list = list(question)?;
    for at in 0..list.len() {
        if at + AHEAD < list.len() {
            prefetch(object_in(&list, at + AHEAD));
        }
        show(object_in(&list, at));
    }
    Ok(())
}

fn each_by(visit: VisitObjects, mut show: impl FnMut(*mut PyObject)) {
    let mut show: &mut dyn FnMut(*mut PyObject) = &mut show;
    // SAFETY: a question is asked by an attached thread. `pass_on` is called with what is given here and
    // nothing else, while this call lasts.
    unsafe { visit(pass_on, (&raw mut show).cast()) };
}

fn list<'py>(question: &Question<'py>) -> PyResult<Bound<'py, PyList>> {
    Ok(question.interpreter.get_objects.call0()?.cast_into::<PyList>()?)
}

fn object_in(list: &Bound<'_, PyList>, at: usize) -> *mut PyObject {
    assert!(at < list.len(), "a place of the list");
    // SAFETY: the index is less than the list's length.
    unsafe { ffi::PyList_GetItem(list.as_ptr(), at.cast_signed()) }
}

type PassOn = unsafe extern "C" fn(*mut PyObject, *mut c_void) -> c_int;
type VisitObjects = unsafe extern "C" fn(PassOn, *mut c_void);

/// Returns the function that visits the objects one by one, without a list, since Python 3.12. It
/// is not part of the stable ABI, so it is used only in interpreters that are known.
fn visit_objects() -> Option<VisitObjects> {
    static FOUND: OnceLock<Option<VisitObjects>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let name = c"PyUnstable_GC_VisitObjects";
        // SAFETY: it looks a name up among those of the process.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: a function of this name has this signature; null is none.
        unsafe { transmute::<*mut c_void, Option<VisitObjects>>(found) }
    })
}

unsafe extern "C" fn pass_on(object: *mut PyObject, show: *mut c_void) -> c_int {
    // SAFETY: `each_by` gave it, and waits.
    let show = unsafe { &mut *show.cast::<&mut dyn FnMut(*mut PyObject)>() };
    show(object);
    // Go on.
    1
}
