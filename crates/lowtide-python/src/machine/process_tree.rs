//! A process with all that it started, for workers.

use std::sync::Mutex;
use std::time::Duration;

use lowtide_device::process_tree;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::calls::parse::seconds;
use crate::calls::waiting::lock;

/// A process and all that it has started, in whatever group or session.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct ProcessTree(Mutex<process_tree::ProcessTree>);

#[pymethods]
impl ProcessTree {
    /// Finds a process and all that it has started. Those that it starts later are found if it still runs when
    /// they are killed.
    #[new]
    fn new(pid: u32) -> PyResult<ProcessTree> {
        let tree = process_tree::ProcessTree::of(pid);
        Ok(ProcessTree(Mutex::new(tree.map_err(|error| PyOSError::new_err(error.to_string()))?)))
    }

    /// Kills those that have not ended, and waits for them. Returns those that are still there afterwards.
    fn kill(&self, py: Python<'_>, within_s: f64) -> PyResult<Vec<u32>> {
        let limit: Duration = seconds(within_s)?;
        let killed = py.detach(|| lock(&self.0).kill(limit));
        killed.map_err(|error| PyOSError::new_err(error.to_string()))
    }
}
