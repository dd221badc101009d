//! The gate and its pauses, for Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide::{Mode, Paused, Resume, Step};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::ask::seconds;
use super::call::{held, waiting};
use super::receipt::Receipt;
use super::releaser::Releaser;

create_exception!(
    lowtide,
    Busy,
    PyRuntimeError,
    "Work went on past the limit; nothing was stopped."
);

/// Work passes through it, a pause or a release closes it.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Gate(lowtide::Gate);

impl Gate {
    pub(crate) fn of(releaser: &lowtide::Releaser) -> Gate {
        Gate(releaser.gate().clone())
    }
}

#[pymethods]
impl Gate {
    /// Begins work; waits while the gate is closed.
    fn enter(&self, py: Python<'_>) -> PyResult<Pass> {
        if let Some(pass) = self.0.try_enter() {
            return Ok(Pass::of(pass.into_owned(), &self.0));
        }
        let gate = self.0.clone();
        Ok(Pass::of(held(py, move || gate.enter().into_owned())?, &self.0))
    }

    /// How it stands: open, and how many are active, parked and waiting.
    fn state(&self) -> (bool, usize, usize, usize) {
        let state = self.0.state();
        (state.open, state.active, state.parked, state.waiting)
    }
}

/// Work that passes, until it leaves.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Pass {
    gate: lowtide::Gate,
    pass: Mutex<Option<lowtide::Pass<'static>>>,
}

impl Pass {
    fn of(pass: lowtide::Pass<'static>, gate: &lowtide::Gate) -> Pass {
        Pass { gate: gate.clone(), pass: Mutex::new(Some(pass)) }
    }
}

#[pymethods]
impl Pass {
    /// Where work can stop, it asks here whether it should: `go`, `abort` or `retract`. A pause in place
    /// stops it in here.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<&'static str> {
        if self.gate.is_open() {
            return Ok("go");
        }
        let pass = lock(&self.pass).take();
        let mut pass =
            pass.ok_or_else(|| PyRuntimeError::new_err("this work has left the gate already"))?;
        let (step, pass) = held(py, move || (pass.checkpoint(), pass))?;
        *lock(&self.pass) = Some(pass);
        Ok(word(step))
    }

    /// Ends the work. A second call does nothing.
    fn leave(&self) {
        drop(lock(&self.pass).take());
    }

    fn __enter__(slf: Py<Pass>) -> Py<Pass> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.leave();
    }
}

pub(crate) fn word(step: Step) -> &'static str {
    match step {
        Step::Go => "go",
        Step::Abort => "abort",
        Step::Retract => "retract",
    }
}

/// Pauses of one engine.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Pauses {
    releaser: Py<Releaser>,
    inner: lowtide::Pauses,
    paused: Mutex<Option<Paused>>,
    /// What the flush raised.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl Pauses {
    /// Of the work that passes the releaser's gate; `flush` is called where a pause ends or retracts it.
    #[new]
    #[pyo3(signature = (releaser, flush=None))]
    fn new(releaser: Py<Releaser>, flush: Option<Py<PyAny>>) -> Pauses {
        let mut pauses = lowtide::Pauses::new(&releaser.get().inner);
        let raised: Arc<Mutex<Option<PyErr>>> = Arc::default();
        if let Some(flush) = flush {
            let slot = Arc::clone(&raised);
            pauses = pauses.flushing(move || {
                let error = Python::try_attach(|py| flush.bind(py).call0().err()).flatten();
                *lock(&slot) = error;
            });
        }
        Pauses { releaser, inner: pauses, paused: Mutex::default(), raised }
    }

    /// Stops the work within so many seconds. What ending or retracting it gave back; `None` where it
    /// was stopped in place.
    fn pause(&self, py: Python<'_>, mode: &str, limit_s: f64) -> PyResult<Option<Receipt>> {
        let mode = match mode {
            "abort" => Mode::Abort,
            "retract" => Mode::Retract,
            "in_place" => Mode::InPlace,
            other => {
                let text = format!("{other:?} is no way to pause: abort, retract or in_place");
                return Err(PyValueError::new_err(text));
            }
        };
        let limit = seconds(limit_s)?;
        if lock(&self.paused).is_some() {
            return Err(PyRuntimeError::new_err("it is paused already: resume it first"));
        }
        let pauses = self.inner.clone();
        let paused = waiting(py, move || pauses.pause(mode, limit))?;
        let paused = paused.map_err(|busy| {
            Busy::new_err(format!("{busy}; let it reach a checkpoint, or wait longer"))
        })?;
        let receipt = paused.receipt().cloned();
        let raised = lock(&self.raised).take();
        if let Some(raised) = raised {
            waiting(py, move || drop(paused))?;
            return Err(raised);
        }
        *lock(&self.paused) = Some(paused);
        Ok(receipt.map(|receipt| self.releaser.get().told(receipt)))
    }

    /// Gives cached memory back, unless told not to, then opens the gate. `None` where nothing was
    /// paused or nothing was to be given back.
    #[pyo3(signature = (empty_cache=true))]
    fn resume(&self, py: Python<'_>, empty_cache: bool) -> PyResult<Option<Receipt>> {
        let Some(paused) = lock(&self.paused).take() else { return Ok(None) };
        let resumed = waiting(py, move || paused.resume(Resume { empty_cache }))?;
        Ok(resumed.receipt.map(|receipt| self.releaser.get().told(receipt)))
    }

    /// Whether it is paused, and how many wait where they were stopped.
    fn parked(&self) -> Option<usize> {
        lock(&self.paused).as_ref().map(Paused::parked)
    }

    /// How reserved memory has gone over the resumes: bytes for each update, readings, and whether it
    /// grows.
    fn trend(&self) -> (i64, usize, bool) {
        let trend = self.inner.trend();
        (trend.per_update_bytes, trend.samples, trend.rising)
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        let Some(paused) = lock(&self.paused).take() else { return };
        // It resumes, which asks the interpreter: it must not be held here meanwhile.
        Python::try_attach(|py| py.detach(|| drop(paused)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
