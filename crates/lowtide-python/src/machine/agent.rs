//! The agent of this process, for Python: `lowtide run` put it there.

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::{Answer, Ask, Status, ask, socket_name};
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::calls::waiting::held;
use crate::data::classes::wrapper;
use crate::data::json;
use crate::data::ledger::Ledger;
use crate::data::receipt::Receipt;

create_exception!(
    lowtide,
    AgentError,
    PyRuntimeError,
    "Raised if this program was not started with `lowtide run`, or if it cannot sleep or wake now."
);

wrapper! {
    /// What this process has on its devices, as its agent says.
    AgentStatus(Status) {
        /// Whether its memory is off the devices.
        is_asleep: bool = |it| it.is_asleep;
        /// Whether it is off the devices altogether; the rest is then as it was before.
        is_suspended: bool = |it| it.is_suspended;
        /// The time without a use of the device after which it falls asleep; None if it does not by itself.
        idle_s: Option<f64> = |it| it.idle_s;
        /// The same time as it is now: it grows when work comes back soon after a sleep.
        quiet_s: Option<f64> = |it| it.quiet_s;
        /// For which starting processes a sleep by itself is put off, in words, or why for none.
        gives_way: Option<String> = |it| it.gives_way.clone();
        /// The number of calls so far that used a device.
        touches: u64 = |it| it.touches;
        /// The memory that can sleep, asleep or awake.
        bytes: u64 = |it| it.contexts.iter().map(|context| context.bytes.0).sum();
        /// The part of it that is on the devices now.
        on_device_bytes: u64 = |it| it.contexts.iter().map(|context| context.on_device.0).sum();
        /// Memory that stays on the devices: how it was taken, and its size.
        staying: Vec<(String, u64)> = |it| it.staying.iter().map(|one| (one.what.clone(), one.bytes.0)).collect();
        /// The reasons why the process cannot sleep; empty if it can.
        obstacles: Vec<String> = |it| it.obstacles.clone();
        /// All memory in use on each of its devices, broken down.
        ledgers: Vec<Ledger> = |it| it.ledgers.iter().cloned().map(Ledger).collect();
    }

    /// Returns it as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::as_python(py, &self.0)
    }

    fn __repr__(&self) -> String {
        let state = match (self.0.is_suspended, self.0.is_asleep) {
            (true, _) => "suspended",
            (false, true) => "asleep",
            (false, false) => "awake",
        };
        format!("<AgentStatus {state}, {} bytes that can sleep>", self.bytes())
    }
}

/// Returns what this process has on its devices.
#[pyfunction]
pub(crate) fn agent_status(py: Python<'_>) -> PyResult<AgentStatus> {
    match asked(py, Ask::Status)? {
        Answer::Status(status) => Ok(AgentStatus(status)),
        other => Err(refused(&other)),
    }
}

/// Puts this process to sleep. Returns the receipts; none if it sleeps already.
#[pyfunction]
pub(crate) fn agent_sleep(py: Python<'_>) -> PyResult<Vec<Receipt>> {
    match asked(py, Ask::Sleep)? {
        Answer::Slept { receipts } => Ok(receipts.into_iter().map(Receipt).collect()),
        Answer::Asleep => Ok(Vec::new()),
        other => Err(refused(&other)),
    }
}

/// Takes this process off its devices. Returns what the helper did; `None` if it is suspended already.
#[pyfunction]
pub(crate) fn agent_suspend(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    match asked(py, Ask::Suspend)? {
        Answer::Suspended { suspended, .. } => json::as_python(py, &suspended).map(Some),
        Answer::Asleep => Ok(None),
        other => Err(refused(&other)),
    }
}

/// Wakes this process. Returns the bytes that came back.
#[pyfunction]
pub(crate) fn agent_wake(py: Python<'_>) -> PyResult<u64> {
    match asked(py, Ask::Wake)? {
        Answer::Woken(woken) => Ok(woken.bytes.0),
        other => Err(refused(&other)),
    }
}

/// Asks the agent, detached: it may need the interpreter's lock for torch's cache.
fn asked(py: Python<'_>, what: Ask) -> PyResult<Answer> {
    held(py, move || {
        let failed = |error: &dyn std::error::Error| AgentError::new_err(error.to_string());
        let folder = PrivateFolder::of_user().map_err(|error| failed(&error))?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").map_err(|error| failed(&error))?;
        let name = socket_name(&namespace.to_string_lossy(), std::process::id());
        ask(&folder.path().join(name), what).map_err(|error| failed(&error))
    })?
}

fn refused(answer: &Answer) -> PyErr {
    AgentError::new_err(match answer {
        Answer::Refused { reason } => reason.clone(),
        Answer::NoRoom(no_room) => format!("the process stays asleep: {no_room}"),
        other => format!("the agent answered something else: {}", other.to_line().trim_end()),
    })
}
