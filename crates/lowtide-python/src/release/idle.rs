//! Free-on-idle for Python. The thread that watches is Python's; the loop that it runs is Rust's.

use std::sync::{Arc, Mutex};

use lowtide::release::{IdleOptions, Idling, ParseIdleError};
use lowtide_walk::call_function;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::calls::attached::attached;
use crate::calls::parse::target;
use crate::calls::waiting::{CallClock, held, lock, waiting};
use crate::data::receipt::Receipt;
use crate::data::receipt::{Restored, not_restored};
use crate::release::gate::note_place;
use crate::release::releaser::Releaser;

/// Releases memory while the process is idle.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Idle {
    releaser: Py<Releaser>,
    idling: Idling,
    /// Whether it is switched on.
    #[pyo3(get)]
    enabled: bool,
    /// How long the process has to be idle, in seconds.
    #[pyo3(get)]
    after_s: f64,
    /// Whether who ends a task releases at once.
    #[pyo3(get)]
    at_end: bool,
}

#[pymethods]
impl Idle {
    /// Creates it. `switch` is a value of `LOWTIDE_FREE_ON_IDLE`: a time such as "5m", "on" or
    /// "off".
    #[new]
    /// With `only_caches`, work is not announced but noticed.
    #[pyo3(signature = (releaser, switch, *, to=None, only_caches=false))]
    fn new(
        releaser: Py<Releaser>,
        switch: &str,
        to: Option<Bound<'_, PyAny>>,
        only_caches: bool,
    ) -> PyResult<Idle> {
        let options: Result<IdleOptions, ParseIdleError> = switch.parse();
        let options = options
            .and_then(|options| options.giving_way(|name| std::env::var(name).ok()))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let policy = lowtide::release::Idle::new(options, Arc::new(CallClock::default()));
        let mut idling = Idling::new(&releaser.get().inner, &policy);
        if let Some(to) = to {
            idling = idling.to(target(&to)?);
        }
        if only_caches {
            idling = idling.only_caches();
        }
        let IdleOptions { enabled, after, at_end, .. } = options;
        Ok(Idle { releaser, idling, enabled, after_s: after.as_secs_f64(), at_end })
    }

    /// Returns whether a task could begin now without waiting: the gate is open, and nothing has to
    /// come back first.
    fn is_ready(&self) -> bool {
        let gate = self.releaser.get().inner.gate();
        gate.is_open() && gate.is_awake()
    }

    /// Begins a task; brings back what a release took off the device. A release in progress stops at
    /// its next safe point.
    fn work(&self, py: Python<'_>) -> PyResult<Working> {
        let idling = self.idling.clone();
        let working = if self.is_ready() {
            py.detach(move || idling.work())
        } else {
            held(py, move || idling.work())?
        };
        let working = working.map_err(|error| not_restored(&error))?;
        note_place(py, working.pass());
        let restored =
            working.restored().cloned().map(|it| Py::new(py, Restored(it))).transpose()?;
        let releaser = self.releaser.clone_ref(py);
        Ok(Working { releaser, restored, inner: Mutex::new(Some(working)) })
    }

    /// Counts work that was noticed and not announced.
    fn notice(&self) {
        self.idling.notice();
    }

    /// Releases if the process has been idle for long enough.
    fn tick(&self, py: Python<'_>) -> PyResult<Tick> {
        let idling = self.idling.clone();
        let tick = waiting(py, move |clock| idling.with_clock(clock).tick())?;
        tick_of(py, self.releaser.get(), tick)
    }

    /// Releases whenever the process has been idle for long enough. `pause(seconds)` waits and
    /// returns whether to go on; `on_release` gets the receipt of every release.
    #[expect(clippy::needless_pass_by_value, reason = "they are called until the watch ends")]
    fn watch(&self, py: Python<'_>, pause: Py<PyAny>, on_release: Py<PyAny>) {
        let idling = self.idling.clone();
        let releaser = self.releaser.get();
        py.detach(|| {
            let pause = |left: std::time::Duration| {
                let goes_on = attached(|py| {
                    call_function(pause.bind(py), (left.as_secs_f64(),))?.is_truthy()
                });
                goes_on.unwrap_or(false)
            };
            let on_release = |receipt: &lowtide::release::Receipt| {
                let receipt = releaser.receipt(receipt.clone());
                // It logs its own errors: nobody else could.
                let _ = attached(|py| call_function(on_release.bind(py), (receipt,)).map(drop));
            };
            idling.watch(pause, on_release);
        });
    }
}

fn tick_of(py: Python<'_>, releaser: &Releaser, tick: lowtide::release::Tick) -> PyResult<Tick> {
    Ok(match tick {
        lowtide::release::Tick::Released(receipt) => {
            Tick { receipt: Some(Py::new(py, releaser.receipt(receipt))?), why_not: None }
        }
        lowtide::release::Tick::No(decision) => {
            Tick { receipt: None, why_not: Some(decision.to_string()) }
        }
    })
}

/// The result of one look at an idle policy.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub(crate) struct Tick {
    /// The receipt, if memory was released.
    receipt: Option<Py<Receipt>>,
    /// Why nothing was released.
    why_not: Option<String>,
}

/// A running task. Nothing is released while it lasts.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Working {
    releaser: Py<Releaser>,
    /// What came back before the task began, or `None` if nothing had to.
    #[pyo3(get)]
    restored: Option<Py<Restored>>,
    inner: Mutex<Option<lowtide::release::Working>>,
}

impl Working {
    fn take(&self) -> Option<lowtide::release::Working> {
        lock(&self.inner).take()
    }
}

#[pymethods]
impl Working {
    /// Asks whether work should stop: returns `go`, `abort` or `retract`. Call it wherever work can
    /// stop.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<&'static str> {
        if self.releaser.get().inner.gate().is_open() {
            return Ok("go");
        }
        let mut working =
            self.take().ok_or_else(|| PyRuntimeError::new_err("this task has ended already"))?;
        let (step, working) = held(py, move || (working.checkpoint(), working))?;
        *lock(&self.inner) = Some(working);
        Ok(step.as_str())
    }

    /// Ends the task, and releases at once if the policy says so. A second call does nothing.
    fn end(&self, py: Python<'_>) -> PyResult<Option<Tick>> {
        let Some(working) = self.take() else { return Ok(None) };
        let tick = waiting(py, move |clock| working.end_with_clock(clock))?;
        tick.map(|tick| tick_of(py, self.releaser.get(), tick)).transpose()
    }

    /// Ends the task and releases nothing. A second call does nothing.
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
