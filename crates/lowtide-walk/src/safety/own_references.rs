//! References of our own, in lists that every examination knows.
//!
//! What an examination holds meanwhile must not look like something that native code holds: neither
//! to itself nor to another one, which a signal handler may begin in the middle of it. So our
//! references are in lists of Python, and the addresses of these lists are known to every walk.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::safety::python_lists::empty;

/// The addresses of all such lists.
static LISTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A list of references of our own.
pub(crate) struct Held<'py>(Bound<'py, PyList>);

impl<'py> Held<'py> {
    /// Creates an empty list.
    pub(crate) fn new(py: Python<'py>) -> PyResult<Held<'py>> {
        let list = empty(py)?;
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push(list.as_ptr().expose_provenance());
        Ok(Held(list))
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

impl Drop for Held<'_> {
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
