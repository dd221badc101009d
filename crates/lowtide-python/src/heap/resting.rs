//! The collector, resting: what a walk has met must not be freed before the answer is made.
//!
//! From the beginning of a walk to the end of its answer no Python code runs, so nobody else can switch
//! it on or off meanwhile.

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
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // It cannot fail, and there would be nobody to tell.
            let _ = self.gc.call_method0("enable");
        }
    }
}
