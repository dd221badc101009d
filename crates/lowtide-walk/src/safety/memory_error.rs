//! Too little memory, as Python is told of it.

use pyo3::PyErr;
use pyo3::exceptions::PyMemoryError;

use crate::safety::out_of_memory::OutOfMemory;

impl From<OutOfMemory> for PyErr {
    fn from(_: OutOfMemory) -> PyErr {
        PyMemoryError::new_err("there is not enough memory to examine the heap")
    }
}
