//! The collector, resting: what a walk has met must not be freed before the walk is over.

use pyo3::prelude::*;

/// While this lives the collector does not run by itself.
pub(crate) struct Resting<'py> {
    gc: Bound<'py, PyModule>,
    was_enabled: bool,
}

impl<'py> Resting<'py> {
    pub(crate) fn begin(py: Python<'py>) -> PyResult<Resting<'py>> {
        let gc = py.import("gc")?;
        let was_enabled = gc.call_method0("isenabled")?.extract()?;
        gc.call_method0("disable")?;
        Ok(Resting { gc, was_enabled })
    }

    pub(crate) fn end(mut self) -> PyResult<()> {
        self.restore()
    }

    fn restore(&mut self) -> PyResult<()> {
        if std::mem::take(&mut self.was_enabled) {
            self.gc.call_method0("enable")?;
        }
        Ok(())
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        // There is an error already, which is the one to tell.
        let _ = self.restore();
    }
}
