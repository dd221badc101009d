//! Switches the collector off: what a walk has met must not be freed before the answer is made.
//!
//! It is switched off after the last call that could run Python code: such code could switch it on
//! again.

use pyo3::ffi;
use pyo3::prelude::*;

/// While this exists, the collector does not run by itself.
pub(crate) struct Resting<'py> {
    was_enabled: bool,
    /// Only an attached thread may switch the collector.
    _attached: Python<'py>,
}

impl<'py> Resting<'py> {
    pub(crate) fn begin(py: Python<'py>) -> Resting<'py> {
        // SAFETY: this thread is attached. No Python code runs.
        let was_enabled = unsafe { ffi::PyGC_Disable() } == 1;
        Resting { was_enabled, _attached: py }
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: this thread is attached. No Python code runs.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
