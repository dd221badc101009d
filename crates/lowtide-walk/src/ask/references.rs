//! What one object refers to, for Python. `gc.get_referents` is not asked: it hands out whatever a
//! traverse slot shows.
//!
//! Some slots show objects that have ended and wait on a list to be used again: up to Python 3.12.5
//! the module `_asyncio` does (gh-122695). To hold such an object for a moment makes it end twice,
//! and its list never ends from then on. So nothing without references is shown here, and the slot
//! of a module is stopped once it has shown too many of them.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::ask::numpy;
use crate::ask::object::{class_of, count_of};
use crate::ask::types::{is_gc, is_of_the_program, traverse};
use crate::safety::python_lists::list_of;

/// The most ended objects that a slot may show. The lists of the interpreter have a few hundred.
pub(crate) const ENDED_MOST: usize = 1 << 16;

/// Returns whether the traverse slot of `holder` shows `held`.
#[pyfunction]
pub fn refers(holder: &Bound<'_, PyAny>, held: &Bound<'_, PyAny>) -> bool {
    let mut search = Search { held: held.as_ptr(), found: false, ended: 0 };
    // SAFETY: it is alive.
    let is_module = unsafe { ffi::PyModule_Check(holder.as_ptr()) } != 0;
    visit(holder.as_ptr(), if is_module { look_live } else { look }, (&raw mut search).cast());
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
    visit(holder.as_ptr(), note, (&raw mut shown).cast());
    if shown.is_full {
        return Err(PyMemoryError::new_err(()));
    }
    let py = holder.py();
    // SAFETY: each is alive: its holder refers to it, and no Python code has run since.
    let objects = shown.live.iter().map(|one| unsafe { Bound::from_borrowed_ptr(py, *one) });
    list_of(py, objects)
}

/// Returns the few objects that a live object without attributes refers to: one that shows memory
/// has one or two.
pub(crate) fn shown_behind(address: usize, array: Option<*mut PyTypeObject>) -> Vec<usize> {
    let object = std::ptr::with_exposed_provenance_mut::<PyObject>(address);
    let mut shown = Shown::default();
    if Some(class_of(object)) == array {
        shown.live.extend(Some(numpy::base(object)).filter(|base| !base.is_null()));
    }
    if !is_of_the_program(class_of(object)) {
        visit(object, note, (&raw mut shown).cast());
    }
    if shown.live.len() > BEHIND_MOST {
        return Vec::new();
    }
    shown.live.iter().map(|one| one.expose_provenance()).collect()
}

/// The most references of an object that only shows memory.
const BEHIND_MOST: usize = 3;

/// Calls the traverse slot of a live object, if it has one.
pub(crate) fn visit(object: *mut PyObject, show: ffi::visitproc, with: *mut c_void) {
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
    ended: usize,
}

unsafe extern "C" fn look(object: *mut PyObject, search: *mut c_void) -> c_int {
    // SAFETY: `refers` passed it, and nobody else uses it during the call.
    let search = unsafe { &mut *search.cast::<Search>() };
    search.found = object == search.held;
    c_int::from(search.found)
}

/// The same for the slots of modules. It reads every object, which takes long where there are
/// millions.
unsafe extern "C" fn look_live(object: *mut PyObject, search: *mut c_void) -> c_int {
    {
        // SAFETY: as in `look`.
        let search = unsafe { &mut *search.cast::<Search>() };
        search.ended += usize::from(count_of(object) == 0);
        if search.ended > ENDED_MOST {
            return 1;
        }
    }
    // SAFETY: the arguments are those of this call.
    unsafe { look(object, search) }
}

/// What a slot has shown.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) live: Vec<*mut PyObject>,
    ended: usize,
    /// Whether there was no memory for more.
    pub(crate) is_full: bool,
}

/// Notes what a slot shows. To be passed to [`visit`] with a [`Shown`].
pub(crate) unsafe extern "C" fn note(object: *mut PyObject, shown: *mut c_void) -> c_int {
    // SAFETY: who visits passed it, and nobody else uses it during the call.
    let shown = unsafe { &mut *shown.cast::<Shown>() };
    if count_of(object) == 0 {
        shown.ended += 1;
        return c_int::from(shown.ended > ENDED_MOST);
    }
    if shown.live.try_reserve(1).is_err() {
        shown.is_full = true;
        return 1;
    }
    shown.live.push(object);
    0
}
