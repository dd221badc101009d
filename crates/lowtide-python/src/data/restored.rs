//! What came back to the device before work began, for Python.

use lowtide::release::RestoreError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::data::receipt::Reading;
use crate::data::values::Touch;

/// What came back to the device before a task began: models, sessions.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Restored(pub(crate) lowtide::release::Restored);

#[pymethods]
impl Restored {
    /// Each model and session, with its size if that is known.
    #[getter]
    fn touched(&self) -> Vec<Touch> {
        self.0.touched.iter().map(Touch::from).collect()
    }

    /// The numbers of the device and of the allocators before anything came back.
    #[getter]
    fn before(&self) -> Reading {
        Reading(self.0.before)
    }

    /// The same numbers when everything was back.
    #[getter]
    fn after(&self) -> Reading {
        Reading(self.0.after)
    }

    /// Whether the numbers confirm that the memory is there; false if no size is known.
    #[getter]
    fn proved(&self) -> bool {
        self.0.proved
    }

    /// How long it took, in seconds.
    #[getter]
    fn took_s(&self) -> f64 {
        self.0.took_s
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Restored {}>", self.0)
    }
}

/// Returns the exception of work that could not begin.
pub(crate) fn not_restored(error: &RestoreError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
