//! Calls into the interpreter whose exceptions become text.
//!
//! Nothing keeps the exception: its traceback would keep alive what a release is about to free.

use pyo3::prelude::*;

/// Runs `work` with the interpreter attached. Returns the text of the exception that it raised.
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, String> {
    // The exception and its frames are dropped while the interpreter is attached.
    let done = Python::try_attach(|py| work(py).map_err(|error| error.to_string()));
    done.unwrap_or_else(|| Err("the interpreter is shutting down".to_owned()))
}
