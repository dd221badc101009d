//! Lists for Python. Out of memory is an error here: pyo3's own functions panic.

use pyo3::PyTypeInfo;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Returns a list of some objects.
pub(crate) fn list_of<'py, T: PyTypeInfo>(
    py: Python<'py>,
    objects: impl IntoIterator<Item = Bound<'py, T>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = empty(py)?;
    for object in objects {
        list.append(object)?;
    }
    Ok(list)
}

/// Returns an empty list.
pub(crate) fn empty(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    // SAFETY: this thread is attached.
    let list = unsafe { ffi::PyList_New(0) };
    // SAFETY: it is new and ours, or null with an exception.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, list) }?;
    Ok(list.cast_into::<PyList>()?)
}
