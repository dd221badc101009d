//! Free-on-idle for Python: the policy and its ticks. The thread that ticks is Python's.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide::{Decision, IdleOptions, Idling};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::call::{PythonClock, held, waiting};
use super::gate::word;
use super::parse::target;
use super::receipt::Receipt;
use super::releaser::Releaser;

/// Releases memory while the process is idle.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Idle {
    releaser: Py<Releaser>,
    idling: Idling,
    options: IdleOptions,
}

#[pymethods]
impl Idle {
    /// Creates it. `switch` is a value of `LOWTIDE_FREE_ON_IDLE`: a time such as "5m", "on" or "off".
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

    /// How long the process has to be idle, in seconds.
    #[getter]
    fn after_s(&self) -> f64 {
        self.options.after.as_secs_f64()
    }

    /// Begins a task; waits for a release in progress.
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

    /// Releases if the process has been idle for long enough.
    fn tick(&self, py: Python<'_>) -> PyResult<Tick> {
        let idling = self.idling.clone();
        let (tick, look_again_s) = waiting(py, move || {
            let tick = idling.tick();
            let look_again = idling.look_again_in(&tick);
            (tick, look_again.as_secs_f64())
        })?;
        Ok(match tick {
            lowtide::Tick::Released(receipt) => {
                let receipt = Py::new(py, self.releaser.get().receipt(receipt))?;
                Tick { receipt: Some(receipt), why_not: None, look_again_s }
            }
            lowtide::Tick::No(decision) => {
                Tick { receipt: None, why_not: Some(why_not(&decision)), look_again_s }
            }
        })
    }
}

/// The result of one look at an idle policy.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub(crate) struct Tick {
    /// The receipt, if memory was released.
    receipt: Option<Py<Receipt>>,
    /// Why nothing was released.
    why_not: Option<String>,
    /// In how many seconds to look again.
    look_again_s: f64,
}

fn why_not(decision: &Decision) -> String {
    match decision {
        Decision::Release(_) => "it is time".to_owned(),
        Decision::Off => "it is switched off".to_owned(),
        Decision::Underway => "a release is in progress".to_owned(),
        Decision::Active { count } => format!("{count} tasks are running"),
        Decision::NothingRan => "nothing has run since the last release".to_owned(),
        Decision::Wait { left } => {
            format!("{:.1} s until it is idle for long enough", left.as_secs_f64())
        }
        Decision::NothingToUnload => "there is nothing to unload".to_owned(),
    }
}

/// A running task. Nothing is released while it lasts.
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
    /// Asks whether work should stop: returns `go`, `abort` or `retract`. Call it wherever work can stop.
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
