//! Backups of tagged memory ahead of sleeps: a thread for each device that has tagged memory, now or later.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide::pool::AheadNext;
use lowtide::{AheadShare, AheadThread};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::home::{self, Home};

/// The backups that this process makes ahead, if any.
static RUNNING: Mutex<Running> =
    Mutex::new(Running { number: 0, share: None, threads: BTreeMap::new() });

struct Running {
    /// How often backups were begun. Whoever began others cannot end these.
    number: u64,
    share: Option<AheadShare>,
    /// By the number of the device; or why there is no thread.
    threads: BTreeMap<u32, Result<AheadThread, String>>,
}

/// Makes backups ahead from now on, in the place of those that are made already. Returns a number for the other
/// functions. Raises `ValueError` if the share is not from 1 to 100 percent.
#[pyfunction]
pub(crate) fn tags_ahead(py: Python<'_>, share: i64) -> PyResult<u64> {
    let share = AheadShare::percent(share).map_err(|bad| PyValueError::new_err(bad.to_string()))?;
    home::check_process()?;
    Ok(py.detach(|| {
        let mut running = running();
        running.number += 1;
        running.share = Some(share);
        let (number, before) = (running.number, mem::take(&mut running.threads));
        drop(running);
        // Their last step ends before the first one with the new share begins.
        drop(before);
        for (device, home) in home::all() {
            begin_on(device, &home);
        }
        number
    }))
}

/// Ends backups by their number, or any. Waits for the step that is under way.
#[pyfunction]
#[pyo3(signature = (number=None))]
pub(crate) fn tags_ahead_end(py: Python<'_>, number: Option<u64>) {
    // A forked child has none.
    if home::check_process().is_err() {
        return;
    }
    py.detach(|| {
        let mut running = running();
        if number.is_some_and(|number| number != running.number) {
            return;
        }
        running.share = None;
        let threads = mem::take(&mut running.threads);
        drop(running);
        drop(threads);
    });
}

/// Returns what the backups of this number do on each device, as a word; `None` if they have ended.
#[pyfunction]
pub(crate) fn tags_ahead_state(number: u64) -> Option<BTreeMap<String, String>> {
    home::check_process().ok()?;
    let running = running();
    if running.number != number || running.share.is_none() {
        return None;
    }
    let state = |thread: &Result<AheadThread, String>| match thread {
        Err(error) => format!("failed: {error}"),
        Ok(thread) => word(thread.last().map(|report| report.next)).to_owned(),
    };
    let all = running.threads.iter();
    Some(all.map(|(device, thread)| (format!("cuda:{device}"), state(thread))).collect())
}

/// Starts the thread of a device, if backups are made ahead.
pub(super) fn begin_on(device: u32, home: &Home) {
    let mut running = running();
    if let Some(share) = running.share {
        let start = || AheadThread::start(&home.pool, share).map_err(|error| error.to_string());
        running.threads.entry(device).or_insert_with(start);
    }
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn word(next: Option<AheadNext>) -> &'static str {
    match next {
        Some(AheadNext::Nothing) => "done",
        Some(AheadNext::NoRoom) => "no room",
        _ => "working",
    }
}
