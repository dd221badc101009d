//! The gate for Python.

use std::sync::Mutex;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::calls::waiting::{held, lock};
use crate::data::classes::wrapper;
use crate::data::receipt::not_restored;

/// A gate that work passes and that a pause or a release closes.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Gate {
    releaser: lowtide::release::Releaser,
    gate: lowtide::release::Gate,
}

impl Gate {
    pub(crate) fn of(releaser: &lowtide::release::Releaser) -> Gate {
        Gate { releaser: releaser.clone(), gate: releaser.gate().clone() }
    }
}

#[pymethods]
impl Gate {
    /// Begins work; waits while the gate is closed, and brings back what a release took off the device. `within` is a pass that this work is a part of:
    /// then it does not wait. Raises in a forked child that inherited the gate.
    #[pyo3(signature = (within=None))]
    fn enter(&self, py: Python<'_>, within: Option<Py<Pass>>) -> PyResult<Pass> {
        if self.gate.is_inherited() {
            return Err(PyRuntimeError::new_err(
                "this gate belongs to the parent process: make a new one after the fork",
            ));
        }
        if let Some(outer) = within {
            let outer = lock(&outer.get().pass);
            let outer = outer.as_ref().ok_or_else(left_already)?;
            return Ok(Pass::of(py, self.gate.enter_within(outer).into_owned(), &self.gate));
        }
        if self.gate.is_awake()
            && let Some(pass) = self.gate.try_enter()
        {
            return Ok(Pass::of(py, pass.into_owned(), &self.gate));
        }
        let releaser = self.releaser.clone();
        let entered = held(py, move || releaser.enter())?;
        let (pass, _) = entered.map_err(|error| not_restored(&error))?;
        Ok(Pass::of(py, pass, &self.gate))
    }

    /// Returns the state of the gate.
    fn state(&self) -> GateState {
        GateState(self.gate.state())
    }
}

wrapper! {
    /// The state of a gate.
    GateState(lowtide::release::GateState), __eq__ {
        /// Whether work may enter.
        open: bool = |it| it.open;
        /// The number of active passes.
        active: usize = |it| it.active;
        /// The number of passes that are parked at a checkpoint until the gate opens.
        parked: usize = |it| it.parked;
        /// The number of callers that wait to enter.
        waiting: usize = |it| it.waiting;
    }

    fn __repr__(&self) -> String {
        let lowtide::release::GateState { open, active, parked, waiting } = self.0;
        let state = if open { "open" } else { "closed" };
        format!("<GateState {state}, {active} active, {parked} parked, {waiting} waiting>")
    }
}

/// Work that has entered a gate, until it leaves.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Pass {
    gate: lowtide::release::Gate,
    pass: Mutex<Option<lowtide::release::OwnedPass>>,
}

impl Pass {
    fn of(
        py: Python<'_>,
        pass: lowtide::release::OwnedPass,
        gate: &lowtide::release::Gate,
    ) -> Pass {
        note_place(py, &pass);
        Pass { gate: gate.clone(), pass: Mutex::new(Some(pass)) }
    }
}

#[pymethods]
impl Pass {
    /// Asks whether work should stop: returns `go`, `abort` or `retract`. Call it wherever work can
    /// stop. If the pause is in place, it returns when the gate opens.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<&'static str> {
        if self.gate.is_open() {
            return Ok("go");
        }
        let mut pass = lock(&self.pass).take().ok_or_else(left_already)?;
        let (step, pass) = held(py, move || (pass.checkpoint(), pass))?;
        *lock(&self.pass) = Some(pass);
        Ok(step.as_str())
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

/// Records where in Python a pass was taken, for those who wait for it in vain.
pub(crate) fn note_place(py: Python<'_>, pass: &lowtide::release::OwnedPass) {
    pass.note_place(caller(py).unwrap_or_else(|_| "Python".to_owned()));
}

/// Returns the place that called lowtide: `serve.py:12`.
fn caller(py: Python<'_>) -> PyResult<String> {
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    loop {
        let module: String = frame.getattr("f_globals")?.get_item("__name__")?.extract()?;
        if module != "lowtide" && !module.starts_with("lowtide.") {
            let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
            let line: u64 = frame.getattr("f_lineno")?.extract()?;
            return Ok(format!("{file}:{line}"));
        }
        frame = frame.getattr("f_back")?;
    }
}

fn left_already() -> PyErr {
    PyRuntimeError::new_err("this work has left the gate already")
}
