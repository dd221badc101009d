//! The collector's own lists of objects, read in place.
//!
//! Each generation is a ring of links in front of the objects that the collector tracks. To follow the links counts
//! no reference up and down and needs no list of all objects, which `gc.get_objects` would make: its objects are
//! those of the three generations, youngest first. Objects that `gc.freeze` has hidden are in a fourth
//! ring, which no function of the interpreter lists.
//!
//! The heads of the rings follow each other in the interpreter's state, each with the threshold and
//! the count of its generation. An object that was just made is the last of the youngest generation,
//! so the head comes after it. The heads are used only if their thresholds and counts are those that
//! the collector reports and if their links lead back to them, and only in Python 3.10 to 3.13. Between
//! the oldest generation and the frozen objects stands a pointer to the youngest one's head; that ring
//! is used only if the pointer is right. How many objects are frozen is not asked: the collector counts them one by
//! one, which takes as long as to read them.
//!
//! Where the rings cannot be read, the collector makes a list of its objects, without the frozen ones. It must not
//! exist while other code runs: that code may be filling a tuple, and would notice that somebody else refers to it.
//! So the list is freed at once, and only addresses are kept.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance;

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ask::object::{class_of, object};
use crate::ask::prefetch::{AHEAD, prefetch};
use crate::safety::ending::call_function;
use crate::safety::own_memory::OutOfMemory;
use crate::safety::own_references::{CollectorOff, empty_list};

/// Facts and functions of the interpreter, as they were when the package was imported. To import
/// the functions during a walk would run the program's `__import__`; to look them up could find
/// what the program has put in their place.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct Interpreter<'py> {
    get_objects: Bound<'py, PyAny>,
    get_freeze_count: Bound<'py, PyAny>,
    get_threshold: Bound<'py, PyAny>,
    get_count: Bound<'py, PyAny>,
    pub(crate) current_frames: Bound<'py, PyAny>,
    pub(crate) current_exceptions: Bound<'py, PyAny>,
    /// Whether it is known how frozen objects are linked.
    pub(crate) finds_frozen: bool,
    /// Whether it is known where the collector has its lists of objects.
    knows_generations: bool,
    /// Whether the layout of its objects is known.
    pub(crate) knows_layout: bool,
    /// Whether the traverse slot of a running frame shows its variables.
    pub(crate) frames_show: bool,
    /// Types whose traverse slots any thread may call.
    pub(crate) readers: Vec<Bound<'py, PyType>>,
    /// How many threads walk, whatever the number of objects; 0 if that decides.
    pub(crate) threads: usize,
}

impl Interpreter<'_> {
    /// Returns whether the function that lists objects is the interpreter's own. Python code in its place would let
    /// other threads run during the walk.
    pub(crate) fn lists_itself(&self) -> bool {
        is_native(&self.get_objects)
    }

    /// Returns how many objects are frozen, as the collector counts them.
    pub(crate) fn frozen_count(&self) -> PyResult<usize> {
        self.get_freeze_count.call0()?.extract()
    }
}

fn is_native(function: &Bound<'_, PyAny>) -> bool {
    // SAFETY: it is alive, and this thread is attached.
    (unsafe { ffi::PyCFunction_Check(function.as_ptr()) }) != 0
}

/// The links in front of an object that the collector tracks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Links {
    next: usize,
    previous: usize,
}

/// Bits of a link that are no part of the address.
const FLAGS: usize = 3;
/// How far behind its links an object has its type.
const TYPE_AT: usize = size_of::<Links>() + size_of::<usize>();

/// Returns whether the collector has an object in one of its lists.
pub(crate) fn is_tracked(address: usize) -> bool {
    let object = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the object is alive; one that is not collected at all is not tracked.
    (unsafe { ffi::PyObject_GC_IsTracked(object) }) != 0
}

/// Returns the address of the links after those at an address.
#[inline]
pub(crate) fn next(at: usize) -> usize {
    // SAFETY: at the address are the links of an object that the collector tracks, or of a head.
    unsafe { (*with_exposed_provenance::<Links>(at)).next & !FLAGS }
}

/// Returns the address of the links before those at an address.
fn previous(at: usize) -> usize {
    // SAFETY: as in `next`.
    unsafe { (*with_exposed_provenance::<Links>(at)).previous & !FLAGS }
}

/// The head of a generation's ring, as the interpreter has it.
#[repr(C)]
struct Head {
    links: Links,
    threshold: i32,
    count: i32,
}

/// The heads of the rings, as they follow each other.
#[repr(C)]
struct Heads {
    generations: [Head; 3],
    youngest: usize,
    frozen: Head,
}

/// The rings of objects that the collector has.
pub(crate) struct Rings {
    /// The heads of the generations, youngest first.
    generations: [usize; 3],
    /// The head of the frozen objects, if it is where it was expected.
    frozen: Option<usize>,
}

/// The collector, with its lists of objects.
pub(crate) struct Collector<'py> {
    pub(crate) interpreter: Interpreter<'py>,
    /// The rings, if they are as expected.
    rings: Option<Rings>,
}

impl<'py> Collector<'py> {
    /// Finds the collector's lists.
    pub(crate) fn new(py: Python<'py>, interpreter: Interpreter<'py>) -> PyResult<Collector<'py>> {
        let rings = find_rings(py, &interpreter)?;
        Ok(Collector { interpreter, rings })
    }

    /// Begins to read the objects that are not frozen. An audit hook may run, and nothing after that.
    pub(crate) fn listed(&self) -> PyResult<Listed<'_, 'py>> {
        Ok(match &self.rings {
            Some(rings) => Listed::Rings(rings),
            None => Listed::List(
                call_function(&self.interpreter.get_objects, ())?.cast_into::<PyList>()?,
            ),
        })
    }

    /// Calls `show` with every frozen object, and makes no object either. Returns whether they could be read.
    pub(crate) fn each_frozen(&self, show: impl FnMut(*mut PyObject)) -> bool {
        let head = self.rings.as_ref().and_then(|rings| rings.frozen);
        if let Some(head) = head {
            follow(head, show);
        }
        head.is_some()
    }

    /// Finds the objects of some types, among those that the collector lists and the frozen ones if they can be read.
    pub(crate) fn find(
        &self,
        py: Python<'py>,
        mut is_wanted: impl FnMut(*mut PyTypeObject) -> bool,
    ) -> PyResult<Matching<'py>> {
        let (mut found, mut all, mut is_full) = (Vec::new(), Vec::new(), false);
        let are_none = self.reported_frozen()? == Some(0);
        let mut show = |at: *mut PyObject| {
            is_full |= all.try_reserve(1).is_err() || found.try_reserve(1).is_err();
            if !is_full {
                all.push(at.expose_provenance());
                found.extend(is_wanted(class_of(at)).then(|| object(py, at.expose_provenance())));
            }
        };
        self.listed()?.each(&mut show);
        let has_frozen = self.each_frozen(show) || are_none;
        if is_full { Err(OutOfMemory.into()) } else { Ok(Matching { found, all, has_frozen }) }
    }

    /// Returns how many objects are frozen, as the collector reports it. Returns `None` where the frozen objects can
    /// be read: to read them counts them.
    pub(crate) fn reported_frozen(&self) -> PyResult<Option<usize>> {
        if self.rings.as_ref().is_some_and(|rings| rings.frozen.is_some()) {
            return Ok(None);
        }
        self.interpreter.frozen_count().map(Some)
    }
}

/// The objects of some types.
pub(crate) struct Matching<'py> {
    pub(crate) found: Vec<Bound<'py, PyAny>>,
    /// The addresses of all objects among which they were found, in order.
    pub(crate) all: Vec<usize>,
    /// Whether all frozen objects are among them.
    pub(crate) has_frozen: bool,
}

/// The objects that are not frozen.
pub(crate) enum Listed<'c, 'py> {
    Rings(&'c Rings),
    List(Bound<'py, PyList>),
}

impl Listed<'_, '_> {
    /// Calls `show` with every object. It must not run Python code, and makes no object.
    pub(crate) fn each(self, mut show: impl FnMut(*mut PyObject)) {
        match self {
            Listed::Rings(rings) => {
                rings.generations.iter().for_each(|head| follow(*head, &mut show));
            }
            Listed::List(list) => {
                for at in 0..list.len() {
                    if at + AHEAD < list.len() {
                        prefetch(object_in(&list, at + AHEAD).addr());
                    }
                    show(object_in(&list, at));
                }
            }
        }
    }
}

fn object_in(list: &Bound<'_, PyList>, at: usize) -> *mut PyObject {
    assert!(at < list.len(), "a place of the list");
    // SAFETY: the index is less than the list's length.
    unsafe { ffi::PyList_GetItem(list.as_ptr(), at.cast_signed()) }
}

/// Finds the rings. Returns `None` if they are not as expected.
fn find_rings(py: Python<'_>, interpreter: &Interpreter<'_>) -> PyResult<Option<Rings>> {
    // A program may have put functions of its own in their place before the package was imported.
    let are_own = is_native(&interpreter.get_threshold) && is_native(&interpreter.get_count);
    if !interpreter.knows_generations || !are_own {
        return Ok(None);
    }
    // A collection would move the new object into an older generation.
    let _off = CollectorOff::begin(py);
    let thresholds: [i32; 3] = interpreter.get_threshold.call0()?.extract::<(_, _, _)>()?.into();
    let newest = empty_list(py)?;
    let address = newest.as_ptr().expose_provenance();
    if !is_tracked(address) {
        return Ok(None);
    }
    let first = next(address - size_of::<Links>());
    let generations = [0, 1, 2].map(|generation| first + generation * size_of::<Head>());
    // The youngest one's count changes with every object.
    let counts: (i32, i32, i32) = interpreter.get_count.call0()?.extract()?;
    let counts = [None, Some(counts.1), Some(counts.2)];
    let is_right = |((head, threshold), count): ((usize, i32), Option<i32>)| {
        let Head { threshold: has, count: counted, .. } = head_at(head);
        has == threshold && count.is_none_or(|count| count == counted) && is_ring(head)
    };
    let are_right = generations.into_iter().zip(thresholds).zip(counts).all(is_right);
    Ok(are_right.then(|| Rings { generations, frozen: frozen(first) }))
}

/// Returns the head of the frozen objects, given that of the youngest generation, or `None` if it does not
/// look as expected.
fn frozen(first: usize) -> Option<usize> {
    // SAFETY: it is a part of the interpreter's state, which is much longer and lives as long as the
    // interpreter does.
    let youngest =
        unsafe { with_exposed_provenance::<usize>(first + offset_of!(Heads, youngest)).read() };
    let head = first + offset_of!(Heads, frozen);
    let Head { threshold, count, .. } = head_at(head);
    (youngest == first && threshold == 0 && count == 0 && is_ring(head)).then_some(head)
}

fn head_at(head: usize) -> Head {
    // SAFETY: all heads are parts of the interpreter's state, which lives as long as it does.
    unsafe { with_exposed_provenance::<Head>(head).read() }
}

/// Returns whether the links at a head lead back to it.
fn is_ring(head: usize) -> bool {
    next(head) != 0
        && previous(head) != 0
        && previous(next(head)) == head
        && next(previous(head)) == head
}

/// Calls `show` with the objects of a ring.
fn follow(head: usize, mut show: impl FnMut(*mut PyObject)) {
    let mut at = next(head);
    while at != head {
        assert_ne!(at, 0, "objects in a list are linked");
        let object = with_exposed_provenance::<PyObject>(at + size_of::<Links>());
        at = next(at);
        prefetch(at + TYPE_AT);
        show(object.cast_mut());
    }
}
