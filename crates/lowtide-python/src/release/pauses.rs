//! Pauses for Python: stop the work at the gate, update, resume.

use std::sync::{Arc, Mutex};

use lowtide::release::{Mode, Paused, Resume};
use lowtide_walk::call_function;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::calls::parse::seconds;
use crate::calls::waiting::{lock, waiting};
use crate::data::classes::wrapper;
use crate::data::receipt::Receipt;
use crate::release::releaser::Releaser;

create_exception!(
    lowtide,
    Busy,
    PyRuntimeError,
    "Raised if work continues past the time limit of a pause. Nothing was stopped."
);

wrapper! {
    /// The change of reserved memory over the resumes.
    Trend(lowtide::release::Trend), __eq__ {
        /// The growth with each update.
        per_update_bytes: i64 = |it| it.per_update_bytes;
        /// The number of readings.
        samples: usize = |it| it.samples;
        /// Whether it grows.
        rising: bool = |it| it.rising;
    }

    fn __repr__(&self) -> String {
        let lowtide::release::Trend { per_update_bytes, samples, rising } = self.0;
        format!("<Trend {per_update_bytes} bytes per update, {samples} samples, rising: {rising}>")
    }
}

wrapper! {
    /// A warning that reserved memory grows with every update.
    TrendWarning(lowtide::release::TrendWarning) {
        /// The memory that each update adds.
        per_update_bytes: u64 = |it| it.per_update.0;
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// The result of a resume.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub(crate) struct Resumed {
    /// What emptying the cache freed, or `None` if that was not asked for.
    receipt: Option<Py<Receipt>>,
    /// A warning, at most once for a window of updates.
    warning: Option<Py<TrendWarning>>,
}

/// Pauses of the work that passes one gate.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Pauses {
    releaser: Py<Releaser>,
    inner: lowtide::release::Pauses,
    paused: Mutex<Option<Paused>>,
    /// The exception that the flush raised.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl Pauses {
    /// Creates pauses for the gate of a releaser. A pause that aborts or retracts work calls
    /// `flush`.
    #[new]
    #[pyo3(signature = (releaser, flush=None))]
    fn new(releaser: Py<Releaser>, flush: Option<Py<PyAny>>) -> Pauses {
        let mut pauses = lowtide::release::Pauses::new(&releaser.get().inner);
        let raised: Arc<Mutex<Option<PyErr>>> = Arc::default();
        if let Some(flush) = flush {
            let slot = Arc::clone(&raised);
            pauses = pauses.flushing(move || {
                let error =
                    Python::try_attach(|py| call_function(flush.bind(py), ()).err()).flatten();
                *lock(&slot) = error;
            });
        }
        Pauses { releaser, inner: pauses, paused: Mutex::default(), raised }
    }

    /// Stops the work within so many seconds. Returns the receipt of a pause that aborts or
    /// retracts work, and `None` if the work was stopped in place.
    fn pause(&self, py: Python<'_>, mode: &str, limit_s: f64) -> PyResult<Option<Receipt>> {
        let mode = match mode {
            "abort" => Mode::Abort,
            "retract" => Mode::Retract,
            "in_place" => Mode::InPlace,
            other => {
                let text = format!("{other:?} is not a mode: say abort, retract or in_place");
                return Err(PyValueError::new_err(text));
            }
        };
        let limit = seconds(limit_s)?;
        if lock(&self.paused).is_some() {
            return Err(PyRuntimeError::new_err("the gate is paused already: resume it first"));
        }
        let pauses = self.inner.clone();
        let paused = waiting(py, move |clock| pauses.with_clock(clock).pause(mode, limit))?;
        let paused = paused.map_err(|busy| {
            Busy::new_err(format!("{busy}; let it reach a checkpoint, or wait longer"))
        })?;
        let receipt = paused.receipt().cloned();
        let raised = lock(&self.raised).take();
        if let Some(raised) = raised {
            waiting(py, move |clock| paused.resume_with_clock(Resume::default(), clock))?;
            return Err(raised);
        }
        *lock(&self.paused) = Some(paused);
        Ok(receipt.map(|receipt| self.releaser.get().receipt(receipt)))
    }

    /// Returns cached memory to the driver, unless told not to, then opens the gate. Returns `None`
    /// if nothing was paused.
    #[pyo3(signature = (empty_cache=true, collect=true))]
    fn resume(
        &self,
        py: Python<'_>,
        empty_cache: bool,
        collect: bool,
    ) -> PyResult<Option<Resumed>> {
        let Some(paused) = lock(&self.paused).take() else { return Ok(None) };
        let how = Resume { empty_cache, collect };
        let resumed = waiting(py, move |clock| paused.resume_with_clock(how, clock))?;
        let receipt = resumed.receipt.map(|receipt| self.releaser.get().receipt(receipt));
        Ok(Some(Resumed {
            receipt: receipt.map(|receipt| Py::new(py, receipt)).transpose()?,
            warning: resumed
                .warning
                .map(|warning| Py::new(py, TrendWarning(warning)))
                .transpose()?,
        }))
    }

    /// Returns how reserved memory has changed over the resumes.
    fn trend(&self) -> Trend {
        Trend(self.inner.trend())
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        let Some(paused) = lock(&self.paused).take() else { return };
        // Dropping it resumes, which calls the interpreter: this thread must not be attached
        // meanwhile.
        Python::try_attach(|py| py.detach(|| drop(paused)));
    }
}
