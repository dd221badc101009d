//! Free on idle, for Python: the policy and its ticks. The thread that ticks is Python's, so that what
//! it logs and calls is where Python people expect it.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide::{IdleOptions, Idling, Tick};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::ask::target;
use super::call::{PythonClock, held, waiting};
use super::gate::word;
use super::receipt::Receipt;
use super::releaser::Releaser;

/// Gives memory back while nobody works.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Idle {
    releaser: Py<Releaser>,
    idling: Idling,
    options: IdleOptions,
}

#[pymethods]
impl Idle {
    /// `switch` is what `LOWTIDE_FREE_ON_IDLE` may say: a time such as "5m", "on" or "off".
    #[new]
    #[pyo3(signature = (releaser, switch, *, to=None))]
    fn new(releaser: Py<Releaser>, switch: &str, to: Option<Bound<'_, PyAny>>) -> PyResult<Idle> {
        let options: IdleOptions = switch
            .parse()
            .map_err(|error: lowtide::ParseIdleError| PyValueError::new_err(error.to_string()))?;
        let policy = lowtide::Idle::new(options, Arc::new(PythonClock::default()));
        let mut idling = Idling::new(&releaser.get().inner, &policy);
        if let Some(to) = to {
            idling = idling.to(target(&to)?);
        }
        Ok(Idle { releaser, idling, options })
    }

    /// Whether it is switched on.
    #[getter]
    fn enabled(&self) -> bool {
        self.options.enabled
    }

    /// How long nothing may have run.
    #[getter]
    fn after_s(&self) -> f64 {
        self.options.after.as_secs_f64()
    }

    /// Begins a task: waits for a release that is under way.
    fn work(&self, py: Python<'_>) -> PyResult<Working> {
        let idling = self.idling.clone();
        let is_open = self.releaser.get().inner.gate().is_open();
        let working = if is_open {
            py.detach(move || idling.work())
        } else {
            held(py, move || idling.work())?
        };
        let working = working.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let gate = self.releaser.get().inner.gate().clone();
        Ok(Working { gate, working: Mutex::new(Some(working)) })
    }

    /// Looks whether it is time, and releases if it is: the receipt or why there is none, and in how
    /// many seconds to look again.
    fn tick(&self, py: Python<'_>) -> PyResult<(Option<Receipt>, String, f64)> {
        let idling = self.idling.clone();
        let (tick, look_again) = waiting(py, move || {
            let tick = idling.tick();
            let look_again = idling.pause_after(&tick);
            (tick, look_again.as_secs_f64())
        })?;
        Ok(match tick {
            Tick::Released(receipt) => {
                let receipt = self.releaser.get().told(receipt);
                (Some(receipt), "released".to_owned(), look_again)
            }
            Tick::No(decision) => (None, decision.to_string(), look_again),
        })
    }
}

/// A task at work; nothing is released while it lasts.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Working {
    gate: lowtide::Gate,
    working: Mutex<Option<lowtide::Working>>,
}

impl Working {
    fn take(&self) -> Option<lowtide::Working> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Working {
    /// Where work can stop, it asks here whether it should: `go`, `abort` or `retract`.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<&'static str> {
        if self.gate.is_open() {
            return Ok("go");
        }
        let mut working =
            self.take().ok_or_else(|| PyRuntimeError::new_err("this task has ended already"))?;
        let (step, working) = held(py, move || (working.checkpoint(), working))?;
        *self.working.lock().unwrap_or_else(PoisonError::into_inner) = Some(working);
        Ok(word(step))
    }

    /// Ends the task. A second call does nothing.
    fn leave(&self) {
        drop(self.take());
    }

    fn __enter__(slf: Py<Working>) -> Py<Working> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.leave();
    }
}
