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

use super::frozen;
use super::object::{AHEAD, prefetch};
use super::out_of_memory::OutOfMemory;
use super::question::Question;

/// Returns the address of every object that the collector lists. `frozen` is the number of objects that
/// it tracks and does not list.
pub(crate) fn addresses(question: &Question<'_>, frozen: usize) -> PyResult<Vec<usize>> {
    if let Some(shown) = shown(question, frozen)? {
        return Ok(shown);
    }
    let list = list(question)?;
    let mut addresses = Vec::new();
    addresses.try_reserve_exact(list.len()).map_err(OutOfMemory::from)?;
    addresses.extend((0..list.len()).map(|at| object_in(&list, at).expose_provenance()));
    Ok(addresses)
}

/// Returns the same without a list, which would count a reference to each object up and down. `None` if
/// the interpreter does not show its objects, or not as expected.
fn shown(question: &Question<'_>, frozen: usize) -> Result<Option<Vec<usize>>, OutOfMemory> {
    let Some(visit) = visit_objects().filter(|_| question.interpreter.knows_layout) else {
        return Ok(None);
    };
    let (mut shown, mut is_full) = (Vec::new(), false);
    each_by(visit, |object| {
        is_full |= shown.try_reserve(1).is_err();
        if !is_full {
            shown.push(object.expose_provenance());
        }
    });
    if is_full {
        return Err(OutOfMemory);
    }
    // Frozen objects are shown last, in the order of their ring.
    let Some(listed) = shown.len().checked_sub(frozen) else { return Ok(None) };
    if let Some(last) = shown[listed..].last()
        && frozen::ring(*last, frozen).is_none_or(|ring| ring != shown[listed..])
    {
        return Ok(None);
    }
    shown.truncate(listed);
    Ok(Some(shown))
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
