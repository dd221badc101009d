//! Backups of tagged memory ahead of sleeps, as Python asks for them.

use std::collections::BTreeMap;

use lowtide::AheadShare;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::tagged::ahead_threads;
use crate::tagged::pools;

/// Makes backups ahead from now on, in the place of those that are made already. Returns a number for the other
/// functions. Raises `ValueError` if the share is not from 1 to 100 percent.
#[pyfunction]
pub(crate) fn tags_ahead(py: Python<'_>, share: i64) -> PyResult<u64> {
    let share = AheadShare::percent(share).map_err(|bad| PyValueError::new_err(bad.to_string()))?;
    pools::check_process()?;
    Ok(py.detach(|| {
        let number = ahead_threads::begin(share);
        for (device, tagged) in pools::all() {
            ahead_threads::begin_on(device, &tagged.pool);
        }
        number
    }))
}

/// Ends backups by their number, or any. Waits for the step that is under way.
#[pyfunction]
#[pyo3(signature = (number=None))]
pub(crate) fn tags_ahead_end(py: Python<'_>, number: Option<u64>) {
    // A forked child has none.
    if pools::check_process().is_ok() {
        py.detach(|| ahead_threads::end(number));
    }
}

/// Returns what the backups of this number do on each device, as a word; `None` if they have ended.
#[pyfunction]
pub(crate) fn tags_ahead_state(number: u64) -> Option<BTreeMap<String, String>> {
    pools::check_process().ok()?;
    let all = ahead_threads::state(number)?.into_iter();
    Some(all.map(|(device, state)| (format!("cuda:{device}"), state)).collect())
}
