//! The books of stages, for Python: what each took and gave back, and what all of them come to.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide::StageError;
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::ask::{Wishes, ask, size};
use super::call::waiting;
use super::receipt::{Receipt, plain};
use super::releaser::Releaser;

create_exception!(
    lowtide,
    WouldNotFit,
    PyMemoryError,
    "A stage would not fit, so nothing was loaded."
);

/// A sequence of stages on one device.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Stages {
    releaser: Py<Releaser>,
    stages: Arc<lowtide::Stages>,
}

#[pymethods]
impl Stages {
    /// On the releaser's device; no stage may bring what is in use above `budget`.
    #[new]
    #[pyo3(signature = (releaser, budget=None))]
    fn new(releaser: Py<Releaser>, budget: Option<Bound<'_, PyAny>>) -> PyResult<Stages> {
        let mut stages = lowtide::Stages::new(&releaser.get().inner);
        if let Some(budget) = budget {
            stages = stages.budget(size(&budget)?);
        }
        Ok(Stages { releaser, stages: Arc::new(stages) })
    }

    /// Begins a stage; one that says what it needs is refused where that would not fit.
    #[pyo3(signature = (name, needs=None))]
    fn open(
        &self,
        py: Python<'_>,
        name: String,
        needs: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Opened> {
        let needs = needs.map(|needs| size(&needs)).transpose()?;
        let stages = Arc::clone(&self.stages);
        let opened = waiting(py, move || {
            if let Some(needs) = needs {
                stages.make_room::<std::convert::Infallible>(&name, needs)?;
            }
            Ok(stages.open(&name))
        })?;
        let would_not_fit = |error: StageError<_>| WouldNotFit::new_err(error.to_string());
        Ok(Opened(Mutex::new(Some(opened.map_err(would_not_fit)?))))
    }

    /// Looks at what is in use now, for the peak of a stage.
    fn look(&self, py: Python<'_>, opened: &Bound<'_, Opened>) {
        let opened = opened.get();
        py.detach(|| {
            // Taken out of the lock meanwhile: the interpreter is asked.
            let taken = opened.take();
            if let Some(mut stage) = taken {
                self.stages.look(&mut stage);
                *opened.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stage);
            }
        });
    }

    /// Ends a stage by a release.
    #[pyo3(signature = (opened, name, ladder, *, to=None, steps=None, witness=None, wait_s=60.0, planned_s=0.0, parts=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[expect(clippy::needless_pass_by_value, reason = "a list of Python is copied")]
    fn close(
        &self,
        py: Python<'_>,
        opened: &Bound<'_, Opened>,
        name: &str,
        ladder: Vec<String>,
        to: Option<Bound<'_, PyAny>>,
        steps: Option<Bound<'_, PyList>>,
        witness: Option<Py<PyAny>>,
        wait_s: f64,
        planned_s: f64,
        parts: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Receipt> {
        let wishes = Wishes {
            to,
            steps,
            witness,
            pins: true,
            wait_s,
            planned_s,
            attempts: 1,
            every_rung: true,
            // What a stage owns is its own: work of others goes on.
            beside_work: parts.is_none(),
            parts,
        };
        let releaser = self.releaser.get();
        let ask = ask(name, &ladder, wishes, releaser.device.as_ref())?;
        let opened = opened.get().take();
        let opened = opened.ok_or_else(|| PyRuntimeError::new_err("this stage has ended"))?;
        let stages = Arc::clone(&self.stages);
        Ok(releaser.told(waiting(py, move || stages.close(opened, ask))?))
    }

    /// Between two tasks: collect, then trim.
    fn between(&self, py: Python<'_>, name: String) -> PyResult<Receipt> {
        let stages = Arc::clone(&self.stages);
        Ok(self.releaser.get().told(waiting(py, move || stages.between(&name))?))
    }

    /// What has been seen so far, as plain data.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        plain(py, &self.stages.report())
    }
}

/// A stage that has begun.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Opened(Mutex<Option<lowtide::Opened>>);

impl Opened {
    fn take(&self) -> Option<lowtide::Opened> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Opened {
    /// What was in use before it, where the device could be asked.
    #[getter]
    fn before_bytes(&self) -> Option<u64> {
        let opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().and_then(lowtide::Opened::before).map(|bytes| bytes.0)
    }
}
