//! References of our own, in lists that every examination knows, and the collector at rest.
//!
//! What an examination holds meanwhile must not look like something that native code holds: neither
//! to itself nor to another one, which a signal handler may begin in the middle of it. So our
//! references are in lists of Python, and the addresses of these lists are known to every walk. What
//! a walk has met, and nobody here holds, must not be freed before the answer is made.

use std::sync::{Mutex, PoisonError};

use pyo3::PyTypeInfo;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::safety::own_memory::OutOfMemory;

/// The addresses of all such lists.
static LISTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A list of references of our own.
pub(crate) struct OwnReferences<'py>(Bound<'py, PyList>);

impl<'py> OwnReferences<'py> {
    /// Creates an empty list.
    pub(crate) fn new(py: Python<'py>) -> PyResult<OwnReferences<'py>> {
        let list = empty_list(py)?;
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push(list.as_ptr().expose_provenance());
        Ok(OwnReferences(list))
    }

    /// Adds a reference.
    pub(crate) fn push(&self, object: Bound<'py, PyAny>) -> PyResult<()> {
        self.0.append(object)
    }

    /// Returns the list.
    pub(crate) fn list(&self) -> &Bound<'py, PyList> {
        &self.0
    }
}

impl Drop for OwnReferences<'_> {
    fn drop(&mut self) {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        let address = self.0.as_ptr().addr();
        lists.retain(|list| *list != address);
    }
}

/// Returns the addresses of the lists of all examinations that are under way.
pub(crate) fn lists() -> Vec<usize> {
    LISTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// While this exists, the collector does not run by itself.
///
/// It begins after the last call that could run Python code: such code could switch the collector on
/// again.
pub(crate) struct CollectorOff<'py> {
    was_enabled: bool,
    /// Only an attached thread may switch the collector.
    _attached: Python<'py>,
}

impl<'py> CollectorOff<'py> {
    /// Switches the collector off.
    pub(crate) fn begin(py: Python<'py>) -> CollectorOff<'py> {
        // SAFETY: this thread is attached. No Python code runs.
        let was_enabled = unsafe { ffi::PyGC_Disable() } == 1;
        CollectorOff { was_enabled, _attached: py }
    }
}

impl Drop for CollectorOff<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: this thread is attached. No Python code runs.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Returns a list of some objects. Out of memory is an error here: pyo3's own functions panic.
pub(crate) fn list_of<'py, T: PyTypeInfo>(
    py: Python<'py>,
    objects: impl IntoIterator<Item = Bound<'py, T>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = empty_list(py)?;
    for object in objects {
        list.append(object)?;
    }
    Ok(list)
}

/// Returns an empty list.
pub(crate) fn empty_list(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    // SAFETY: this thread is attached.
    let list = unsafe { ffi::PyList_New(0) };
    // SAFETY: it is new and ours, or null with an exception.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, list) }?;
    Ok(list.cast_into::<PyList>()?)
}

impl From<OutOfMemory> for PyErr {
    fn from(_: OutOfMemory) -> PyErr {
        PyMemoryError::new_err("there is not enough memory to examine the heap")
    }
}
