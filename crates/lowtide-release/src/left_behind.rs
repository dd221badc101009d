//! Parts of releases that exceeded their time limit and still run: rungs and hooks.
//!
//! A part is told to stop at its limit. One that does not stop may go on taking memory away from work.
//! So the gate that its release closed stays closed until the part ends, and nobody starts it a second
//! time meanwhile.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowtide_types::RungName;

use crate::clock::Clock;
use crate::gate::Closed;
use crate::home::Home;

/// The name of a part of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartName {
    Rung(RungName),
    Hook(String),
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Rung(name) => write!(f, "{name}"),
            PartName::Hook(name) => write!(f, "the hook {name:?}"),
        }
    }
}

/// The parts that a releaser left behind and that still run.
#[derive(Default)]
pub(crate) struct LeftBehind {
    parts: Mutex<Vec<Arc<Part>>>,
    /// No lock is touched in another process.
    home: Home,
}

/// A part that runs.
pub(crate) struct Part {
    name: PartName,
    /// Whether work must not run beside it.
    pub(crate) takes: bool,
    clock: Arc<dyn Clock>,
    began: Duration,
    state: Mutex<PartState>,
}

#[derive(Default)]
struct PartState {
    /// How it ended.
    ended: Option<String>,
    is_left: bool,
    /// The gates that open when it ends.
    kept: Vec<Arc<Closed>>,
}

impl LeftBehind {
    /// Returns for how long a part of this name has been running; `None` if none was left behind.
    pub(crate) fn running(&self, name: &PartName) -> Option<Duration> {
        let parts = lock(&self.parts);
        parts.iter().find(|part| part.name == *name).map(|part| part.age())
    }

    /// Returns the parts beside which work must not run.
    pub(crate) fn taking(&self) -> Vec<Arc<Part>> {
        lock(&self.parts).iter().filter(|part| part.takes).cloned().collect()
    }

    /// Records that a part is left behind. Returns whether it still runs.
    pub(crate) fn add(&self, part: &Arc<Part>) -> bool {
        // The list is locked around both: the part cannot end and look for itself in between.
        let mut parts = lock(&self.parts);
        let mut state = lock(&part.state);
        state.is_left = state.ended.is_none();
        if state.is_left {
            parts.push(Arc::clone(part));
        }
        state.is_left
    }
}

impl Part {
    pub(crate) fn new(name: PartName, takes: bool, clock: Arc<dyn Clock>) -> Arc<Part> {
        let began = clock.now();
        Arc::new(Part { name, takes, clock, began, state: Mutex::default() })
    }

    pub(crate) fn name(&self) -> &PartName {
        &self.name
    }

    pub(crate) fn age(&self) -> Duration {
        self.clock.since(self.began)
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    /// Keeps a gate closed until the part ends. Returns whether it still runs.
    pub(crate) fn keep(&self, closed: &Arc<Closed>) -> bool {
        let mut state = lock(&self.state);
        let runs = state.ended.is_none();
        if runs {
            state.kept.push(Arc::clone(closed));
        }
        runs
    }
}

/// Says that a part has ended when it is dropped, also if the part never began.
pub(crate) struct Ending {
    pub(crate) part: Arc<Part>,
    pub(crate) left_behind: Arc<LeftBehind>,
    pub(crate) how: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.left_behind.home.is_here() {
            return;
        }
        let mut parts = lock(&self.left_behind.parts);
        parts.retain(|part| !Arc::ptr_eq(part, &self.part));
        let mut state = lock(&self.part.state);
        let (how, kept) = (std::mem::take(&mut self.how), std::mem::take(&mut state.kept));
        if state.is_left {
            let part = self.part.name.to_string();
            let took = self.part.age();
            tracing::warn!(part, ?took, how, "a part of a release that was left behind has ended");
        }
        state.ended = Some(how);
        drop((state, parts));
        // Opens the gate, if nothing else keeps it closed.
        drop(kept);
    }
}

// A panic cannot leave what is under these locks half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
