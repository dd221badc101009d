//! The climb that a call into Python is part of.
//!
//! A hook may ask for a release, directly or through code of the program. That release would wait
//! for the one that the hook is part of, so it is refused with the verdict `busy`. The climb
//! travels in a context variable: Python's own way to pass an argument along, which follows a task.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A climb, as Python carries it.
#[pyclass(frozen, module = "lowtide._native")]
struct Climb(lowtide::release::Climb);

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let variable = VARIABLE.get_or_try_init(py, || {
        let class = py.import("contextvars")?.getattr("ContextVar")?;
        Ok::<_, PyErr>(class.call1(("lowtide_climb",))?.unbind())
    })?;
    Ok(variable.bind(py))
}

/// Calls Python as a part of a climb.
pub(crate) fn within<T>(
    py: Python<'_>,
    climb: &lowtide::release::Climb,
    call: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    let variable = variable(py)?;
    let token = variable.call_method1("set", (Climb(climb.clone()),))?;
    let result = call();
    variable.call_method1("reset", (token,))?;
    result
}

/// Returns the climb that the running Python code is part of.
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<lowtide::release::Climb>> {
    let climb = variable(py)?.call_method1("get", (py.None(),))?;
    if climb.is_none() {
        return Ok(None);
    }
    Ok(Some(climb.cast::<Climb>()?.get().0.clone()))
}
