//! The objects of some types that a few objects lead to: a search from these, and no walk over the heap.

use std::collections::{HashMap, HashSet};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ask::object::class_of;
use crate::ask::references::{Shown, note, visit};
use crate::safety::python_lists::list_of;

/// What a search does with objects of one type.
#[derive(Clone, Copy)]
struct Class {
    is_passed: bool,
    is_wanted: bool,
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
        *classes.entry(of.addr()).or_insert_with(|| Class {
            is_passed: !is_any(of, &not_through),
            is_wanted: is_any(of, &wanted),
        })
    };
    let mut seen: HashSet<*mut PyObject> = HashSet::new();
    let mut found: Vec<*mut PyObject> = Vec::new();
    let mut here: Vec<*mut PyObject> = roots.iter().map(Bound::as_ptr).collect();
    while !here.is_empty() && seen.len() < most {
        let mut shown = Shown::default();
        for one in here {
            let class = class(class_of(one));
            if !class.is_passed || !seen.insert(one) {
                continue;
            }
            if class.is_wanted {
                found.push(one);
            }
            visit(one, note, (&raw mut shown).cast());
        }
        if shown.is_full {
            return Err(PyMemoryError::new_err(()));
        }
        here = shown.live;
    }
    // SAFETY: each is alive: the roots lead to it, and no Python code has run since they were given.
    let found = found.into_iter().map(|one| unsafe { Bound::from_borrowed_ptr(py, one) });
    list_of(py, found)
}

/// Returns whether a type is one of these, or below one.
fn is_any(class: *mut PyTypeObject, of: &[Bound<'_, PyType>]) -> bool {
    // SAFETY: the type is of a live object, so it is alive itself, and so are these.
    of.iter().any(|one| unsafe { ffi::PyType_IsSubtype(class, one.as_type_ptr()) } != 0)
}
