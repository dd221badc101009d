//! The objects that the collector lists.
//!
//! A list of them must not exist while other code runs: that code may be filling a tuple, and would
//! notice that somebody else refers to it. So the list is freed at once, and only addresses are
//! kept.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::object::{AHEAD, prefetch};
use super::out_of_memory::OutOfMemory;
use super::question::Question;

/// Returns the address of every object that the collector lists.
pub(crate) fn addresses(question: &Question<'_>) -> PyResult<Vec<usize>> {
    let list = list(question)?;
    let mut addresses = Vec::new();
    addresses.try_reserve_exact(list.len()).map_err(OutOfMemory::from)?;
    addresses.extend((0..list.len()).map(|at| object_in(&list, at).expose_provenance()));
    Ok(addresses)
}

/// Calls `show` with every object that the collector lists, and some that it does not. `show` must
/// not run Python code.
pub(crate) fn each(question: &Question<'_>, mut show: impl FnMut(*mut PyObject)) -> PyResult<()> {
    if question.interpreter.knows_layout
        && let Some(visit) = visit_objects()
    {
        let mut show: &mut dyn FnMut(*mut PyObject) = &mut show;
        // SAFETY: this thread is attached. `pass_on` is called with what is given here and nothing
        // else, while this call lasts.
        unsafe { visit(pass_on, (&raw mut show).cast()) };
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
    // SAFETY: `each` gave it, and waits.
    let show = unsafe { &mut *show.cast::<&mut dyn FnMut(*mut PyObject)>() };
    show(object);
    // Go on.
    1
}
