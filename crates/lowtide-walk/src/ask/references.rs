//! What one object refers to, by its type's traverse slot, and what a few objects lead to. `gc.get_referents` is not asked: it hands out
//! whatever a slot shows.
//!
//! Some slots show objects that have ended and wait on a list to be used again: up to Python 3.12.5
//! the module `_asyncio` does (gh-122695). To hold such an object for a moment makes it end twice,
//! and its list never ends from then on. So nothing without references is shown here, and the slot
//! of a module is stopped once it has shown too many of them.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ask::numpy;
use crate::ask::object::{class_of, count_of, is_below, object};
use crate::ask::types::{is_gc, is_of_the_program, traverse};
use crate::safety::own_memory::OutOfMemory;
use crate::safety::own_references::list_of;

/// The most ended objects that a slot may show. The lists of the interpreter have a few hundred.
const ENDED_MOST: usize = 1 << 16;
/// The most references of an object that only shows memory.
const BEHIND_MOST: usize = 3;

/// What a search does with objects of one type.
#[derive(Clone, Copy)]
struct Class {
    is_passed: bool,
    is_wanted: bool,
}

/// Returns whether the traverse slot of `holder` shows `held`.
#[pyfunction]
pub fn refers(holder: &Bound<'_, PyAny>, held: &Bound<'_, PyAny>) -> bool {
    // SAFETY: it is alive.
    let is_module = unsafe { ffi::PyModule_Check(holder.as_ptr()) } != 0;
    let mut search = Search { held: held.as_ptr(), found: false, is_module, ended: 0 };
    visit(holder.as_ptr(), look, (&raw mut search).cast());
    search.found
}

/// Returns the first position of `held` in a list or tuple, from `start` on.
#[pyfunction]
pub fn position(holder: &Bound<'_, PyAny>, held: &Bound<'_, PyAny>, start: usize) -> Option<usize> {
    let (holder, held, start) = (holder.as_ptr(), held.as_ptr(), start.cast_signed());
    // SAFETY: it is alive.
    let is_list = unsafe { ffi::PyList_Check(holder) } != 0;
    // SAFETY: the same.
    let is_tuple = unsafe { ffi::PyTuple_Check(holder) } != 0;
    let found = if is_list {
        // SAFETY: it is a list.
        let size = unsafe { ffi::PyList_Size(holder) };
        // SAFETY: the position is less than its size: no other code runs meanwhile.
        (start..size).find(|at| unsafe { ffi::PyList_GetItem(holder, *at) } == held)
    } else if is_tuple {
        // SAFETY: it is a tuple.
        let size = unsafe { ffi::PyTuple_Size(holder) };
        // SAFETY: the position is less than its size. An element that is missing is none.
        (start..size).find(|at| unsafe { ffi::PyTuple_GetItem(holder, *at) } == held)
    } else {
        None
    };
    found.map(isize::cast_unsigned)
}

/// Returns the objects that the traverse slot of `holder` shows.
#[pyfunction]
pub fn referents<'py>(holder: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let mut shown = Shown::default();
    shown.add(holder.as_ptr());
    if shown.is_full {
        return Err(OutOfMemory.into());
    }
    list_of(holder.py(), shown.objects.into_iter().map(|one| object(holder.py(), one)))
}

/// Returns the objects of the types `wanted` that `roots` lead to, themselves included.
///
/// Nothing is followed through objects of the types `not_through`, and no further than `most` objects: the
/// steps away from the roots at which so many were seen are the last.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives lists")]
pub fn led_to<'py>(
    py: Python<'py>,
    roots: Vec<Bound<'py, PyAny>>,
    wanted: Vec<Bound<'py, PyType>>,
    not_through: Vec<Bound<'py, PyType>>,
    most: usize,
) -> PyResult<Bound<'py, PyList>> {
    let mut classes: HashMap<usize, Class> = HashMap::new();
    let mut class = |of: *mut PyTypeObject| {
        let is_any =
            |types: &[Bound<'_, PyType>]| types.iter().any(|one| is_below(of, one.as_type_ptr()));
        *classes.entry(of.addr()).or_insert_with(|| Class {
            is_passed: !is_any(&not_through),
            is_wanted: is_any(&wanted),
        })
    };
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    let mut here: Vec<usize> = roots.iter().map(|root| root.as_ptr().expose_provenance()).collect();
    while !here.is_empty() && seen.len() < most {
        let mut shown = Shown::default();
        for one in here {
            let at = with_exposed_provenance_mut(one);
            let class = class(class_of(at));
            if !class.is_passed || !seen.insert(one) {
                continue;
            }
            if class.is_wanted {
                found.push(one);
            }
            shown.add(at);
        }
        if shown.is_full {
            return Err(OutOfMemory.into());
        }
        here = shown.objects;
    }
    // The roots lead to each, and no Python code has run since they were given.
    list_of(py, found.into_iter().map(|one| object(py, one)))
}

/// Returns the few objects that a live object without attributes refers to: one that shows memory
/// has one or two.
pub(crate) fn shown_behind(address: usize, array: Option<*mut PyTypeObject>) -> Vec<usize> {
    let object = with_exposed_provenance_mut::<PyObject>(address);
    let mut shown = Shown::default();
    if Some(class_of(object)) == array {
        let base = Some(numpy::base(object)).filter(|base| !base.is_null());
        shown.objects.extend(base.map(<*mut PyObject>::expose_provenance));
    }
    if !is_of_the_program(class_of(object)) {
        shown.add(object);
    }
    if shown.objects.len() > BEHIND_MOST { Vec::new() } else { shown.objects }
}

/// Calls the traverse slot of a live object, if it has one.
fn visit(object: *mut PyObject, show: ffi::visitproc, with: *mut c_void) {
    let class = class_of(object);
    let Some(traverse) = traverse(class) else { return };
    // SAFETY: the object is alive, and the slot is one of its type.
    if is_gc(class).is_some_and(|is_gc| unsafe { is_gc(object) } == 0) {
        return;
    }
    // SAFETY: the object is alive and collected, and of the type whose slot this is. `show` is
    // called with `with` and nothing else.
    unsafe { traverse(object, show, with) };
}

struct Search {
    held: *mut PyObject,
    found: bool,
    /// Only the slots of modules show objects that have ended. To read every object takes long where
    /// there are millions.
    is_module: bool,
    ended: usize,
}

unsafe extern "C" fn look(object: *mut PyObject, search: *mut c_void) -> c_int {
    // SAFETY: `refers` passed it, and nobody else uses it during the call.
    let search = unsafe { &mut *search.cast::<Search>() };
    search.found = object == search.held;
    search.ended += usize::from(search.is_module && count_of(object) == 0);
    c_int::from(search.found || search.ended > ENDED_MOST)
}

/// What traverse slots have shown.
#[derive(Default)]
pub(crate) struct Shown {
    /// The addresses of the objects.
    pub(crate) objects: Vec<usize>,
    /// The number of objects without references: they have ended, and wait to be used again.
    ended: usize,
    /// Whether there was no memory for more.
    pub(crate) is_full: bool,
}

impl Shown {
    /// Creates it with room for many objects.
    pub(crate) fn with_room() -> Shown {
        Shown { objects: Vec::with_capacity(4096), ..Shown::default() }
    }

    /// Adds the live objects that the traverse slot of a live object shows, if it has one.
    pub(crate) fn add(&mut self, object: *mut PyObject) {
        self.ended = 0;
        visit(object, note_live, (&raw mut *self).cast());
    }
}

/// Notes an object that a traverse slot shows. It does not read the object, which is not in the cache
/// yet. To be passed to a slot with a [`Shown`].
pub(crate) unsafe extern "C" fn note(object: *mut PyObject, shown: *mut c_void) -> c_int {
    // SAFETY: who calls the slot passed it, and nobody else uses it during the call.
    let shown = unsafe { &mut *shown.cast::<Shown>() };
    if shown.objects.len() == shown.objects.capacity() && shown.objects.try_reserve(1).is_err() {
        shown.is_full = true;
        return 1;
    }
    shown.objects.push(object.expose_provenance());
    0
}

/// The same for slots that may show objects that have ended, and never stop showing them.
unsafe extern "C" fn note_live(object: *mut PyObject, shown: *mut c_void) -> c_int {
    if count_of(object) == 0 {
        // SAFETY: as in `note`.
        let shown = unsafe { &mut *shown.cast::<Shown>() };
        shown.ended += 1;
        return c_int::from(shown.ended > ENDED_MOST);
    }
    // SAFETY: the arguments are those of this call.
    unsafe { note(object, shown) }
}
