//! The objects of one type, frozen ones included, and whether an object is frozen.
//!
//! `gc.get_objects` leaves out what `gc.freeze` has hidden. A cache or a captured graph that was frozen with the rest
//! of a server is still there.

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ask::object::class_of;
use crate::memory::heap::object;
use crate::safety::out_of_memory::OutOfMemory;
use crate::safety::python_lists::list_of;
use crate::start::collector_lists::Generations;
use crate::start::frozen;
use crate::start::interpreter::Interpreter;
use crate::start::links::is_tracked;
use crate::walk::listing;

/// Returns the objects of a type, or of one below it. Where frozen objects cannot be read like the others, any of
/// `tried` that is frozen leads to all of them.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a list")]
pub fn objects_of_type<'py>(
    interpreter: &Bound<'py, PyAny>,
    class: &Bound<'py, PyType>,
    tried: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = class.py();
    let interpreter: Interpreter<'py> = interpreter.extract()?;
    let generations = Generations::find(py, &interpreter)?;
    let is_it = |at: *mut PyObject| {
        // SAFETY: both types are alive: the one is that of a live object, the other was given.
        (unsafe { ffi::PyType_IsSubtype(class_of(at), class.as_type_ptr()) }) != 0
    };
    let (mut found, mut listed, mut is_full) = (Vec::new(), Vec::new(), false);
    let are_all = listing::each(&interpreter, generations.as_ref(), |at| {
        is_full |= listed.try_reserve(1).is_err() || found.try_reserve(1).is_err();
        if !is_full {
            listed.push(at.expose_provenance());
            found.extend(is_it(at).then(|| object(py, at.expose_provenance())));
        }
    })?;
    if is_full {
        return Err(OutOfMemory.into());
    }
    if !are_all && interpreter.finds_frozen {
        listed.sort_unstable();
        let count = interpreter.get_freeze_count.call0()?.extract()?;
        let tried = tried.iter().map(|one| one.as_ptr().expose_provenance());
        let unlisted = tried.filter(|address| listed.binary_search(address).is_err());
        let frozen = frozen::from_any(unlisted, count).unwrap_or_default();
        let frozen = frozen.into_iter().map(|address| object(py, address));
        found.extend(frozen.filter(|one| is_it(one.as_ptr())));
    }
    list_of(py, found)
}

/// Returns whether an object is frozen: the collector tracks it, and does not list it.
#[pyfunction]
pub fn is_frozen(interpreter: &Bound<'_, PyAny>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !is_tracked(object.as_ptr().expose_provenance()) {
        return Ok(false);
    }
    let interpreter: Interpreter<'_> = interpreter.extract()?;
    let mut is_listed = false;
    let generations = Generations::find(object.py(), &interpreter)?;
    listing::each_listed(&interpreter, generations.as_ref(), |at| {
        is_listed |= at == object.as_ptr();
    })?;
    Ok(!is_listed)
}
