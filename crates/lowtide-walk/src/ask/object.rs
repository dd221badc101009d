//! Reads live objects without running any code.

use std::ptr::with_exposed_provenance_mut;

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;

/// From this reference count on, an object is immortal.
const IMMORTAL: u32 = 1 << 29;

/// Returns the type of a live object.
pub(crate) fn class_of(object: *mut PyObject) -> *mut PyTypeObject {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_TYPE(object) }
}

/// Returns the reference count of a live object. Newer interpreters keep flags above the lower
/// half.
pub(crate) fn count_of(object: *mut PyObject) -> u32 {
    // SAFETY: the object is alive, and a count is the first thing in it.
    unsafe { object.cast::<u32>().read() }
}

/// Returns whether a reference count is that of an immortal object.
pub(crate) fn is_immortal(count: u32) -> bool {
    count >= IMMORTAL
}

/// Returns whether a type is another one, or below it.
pub(crate) fn is_below(class: *mut PyTypeObject, above: *mut PyTypeObject) -> bool {
    // SAFETY: both are types of live objects, or were given by somebody who has them: they are alive.
    unsafe { ffi::PyType_IsSubtype(class, above) != 0 }
}

/// Returns the object at an address.
pub(crate) fn object(py: Python<'_>, address: usize) -> Bound<'_, PyAny> {
    // SAFETY: it was alive when it was listed or walked, and no Python code has run since.
    unsafe { Bound::from_borrowed_ptr(py, with_exposed_provenance_mut(address)) }
}

/// Returns whether a dict is the one in which an object keeps its attributes, rather than one of them.
pub(crate) fn has_attributes_in(object: &Bound<'_, PyAny>, dict: *mut PyObject) -> bool {
    // SAFETY: the object is alive. Nothing of its class runs, and the interpreter's lock is held.
    let attributes = unsafe { ffi::PyObject_GenericGetDict(object.as_ptr(), std::ptr::null_mut()) };
    if attributes.is_null() {
        drop(PyErr::take(object.py()));
        return false;
    }
    // SAFETY: it is a new reference.
    drop(unsafe { Bound::from_owned_ptr(object.py(), attributes) });
    attributes == dict
}

/// Returns the first element of a tuple, or `None` if it has none or is no tuple.
pub(crate) fn first_of(tuple: *mut PyObject) -> Option<*mut PyObject> {
    // SAFETY: it is alive.
    let is_tuple = unsafe { ffi::PyTuple_Check(tuple) } != 0;
    // SAFETY: it is a tuple.
    if !is_tuple || unsafe { ffi::PyTuple_Size(tuple) } == 0 {
        return None;
    }
    // SAFETY: it is a tuple with at least one element. One that is being made may lack it.
    let first = unsafe { ffi::PyTuple_GetItem(tuple, 0) };
    (!first.is_null()).then_some(first)
}

/// Returns whether a tuple is still being filled. Python must not see such a tuple: reading an
/// empty element ends the process.
pub(crate) fn is_being_made(tuple: *mut PyObject) -> bool {
    // SAFETY: it is alive.
    if unsafe { ffi::PyTuple_Check(tuple) } == 0 {
        return false;
    }
    // SAFETY: it is a tuple.
    let size = unsafe { ffi::PyTuple_Size(tuple) };
    // SAFETY: it is a tuple, and the place is less than its size.
    (0..size).any(|at| unsafe { ffi::PyTuple_GetItem(tuple, at) }.is_null())
}

/// Reads a field at an offset, in bytes.
///
/// # Safety
/// A `T` must be there.
pub(crate) unsafe fn field<T: Copy>(of: *const u8, offset: usize) -> T {
    let place = of.wrapping_add(offset).cast::<T>();
    // SAFETY: the caller promises that it is there; whether it is aligned does not matter.
    unsafe { place.read_unaligned() }
}
