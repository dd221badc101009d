//! Parts of releases that exceeded their time limit and still run: rungs and hooks.
//!
//! A part is told to stop at its limit. One that does not stop may go on taking memory away from work.
//! So the gate that its release closed stays closed until the part ends, and nobody starts it a second
//! time meanwhile.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_types::RungName;

use crate::clock::Clock;
use crate::fork::ProcessMutex;
use crate::gate::Closed;
use crate::sync::unpoisoned;

/// The name of a part of a release. A hook is the same hook in whatever rung it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartName {
    Rung(RungName),
    Hook(String),
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Rung(name) => write!(f, "the rung {name}"),
            PartName::Hook(name) => write!(f, "the hook {name:?}"),
        }
    }
}

/// The parts that a releaser left behind and that still run.
#[derive(Default)]
pub(crate) struct LeftBehind {
    parts: ProcessMutex<Vec<Arc<Part>>>,
}

/// A part that runs.
pub(crate) struct Part {
    name: PartName,
    /// The rung that it is part of; `None` for a rung.
    within: Option<RungName>,
    /// Whether work must not run beside it.
    pub(crate) takes: bool,
    clock: Arc<dyn Clock>,
    began: Duration,
    state: Mutex<PartState>,
}

#[derive(Default)]
struct PartState {
    ended: bool,
    is_left: bool,
    /// The gates that open when it ends.
    kept: Vec<Arc<Closed>>,
}

impl LeftBehind {
    /// Returns for how long a part of this name has been running; `None` if none was left behind.
    pub(crate) fn running(&self, name: &PartName) -> Option<Duration> {
        let part = self.parts.lock()?.iter().find(|part| part.name == *name).cloned();
        part.map(|part| part.age())
    }

    /// Returns the parts beside which work must not run.
    pub(crate) fn taking(&self) -> Vec<Arc<Part>> {
        let Some(parts) = self.parts.lock() else { return Vec::new() };
        parts.iter().filter(|part| part.takes).cloned().collect()
    }

    /// Says what the parts that keep the gate closed mean to work.
    pub(crate) fn advice(&self) -> Vec<String> {
        let still = self.taking().into_iter().filter_map(|part| part.still_keeps());
        still
            .map(|runs| format!("{runs}: the gate stays closed, and work waits, until it ends"))
            .collect()
    }

    /// Records that a part is left behind. Returns whether it still runs.
    pub(crate) fn add(&self, part: &Arc<Part>) -> bool {
        // The list is locked around both: the part cannot end and look for itself in between.
        let Some(mut parts) = self.parts.lock() else { return false };
        let mut state = unpoisoned(part.state.lock());
        state.is_left = !state.ended;
        if state.is_left {
            parts.push(Arc::clone(part));
        }
        state.is_left
    }
}

impl Part {
    pub(crate) fn new(
        name: PartName,
        within: Option<RungName>,
        takes: bool,
        clock: Arc<dyn Clock>,
    ) -> Arc<Part> {
        let began = clock.now();
        Arc::new(Part { name, within, takes, clock, began, state: Mutex::default() })
    }

    pub(crate) fn age(&self) -> Duration {
        self.clock.since(self.began)
    }

    pub(crate) fn has_ended(&self) -> bool {
        unpoisoned(self.state.lock()).ended
    }

    /// Keeps a gate closed until the part ends, and tells whoever is refused by that gate. Returns
    /// whether it still runs.
    pub(crate) fn keep(self: &Arc<Part>, closed: &Arc<Closed>) -> bool {
        let mut state = unpoisoned(self.state.lock());
        let (runs, is_new) =
            (!state.ended, !state.kept.iter().any(|known| Arc::ptr_eq(known, closed)));
        if runs && is_new {
            state.kept.push(Arc::clone(closed));
            let part = Arc::downgrade(self);
            closed.kept_by(Arc::new(move || part.upgrade()?.still_keeps()));
        }
        runs
    }

    /// Says that the part keeps a gate closed and since when it runs; `None` if it does not.
    fn still_keeps(&self) -> Option<String> {
        if unpoisoned(self.state.lock()).kept.is_empty() {
            return None;
        }
        Some(format!("{self} still runs, since {:.1} s ago", self.age().as_secs_f64()))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        self.within.as_ref().map_or(Ok(()), |rung| write!(f, " of the rung {rung}"))
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
        let Some(mut parts) = self.left_behind.parts.lock() else { return };
        let how = std::mem::take(&mut self.how);
        parts.retain(|part| !Arc::ptr_eq(part, &self.part));
        let mut state = unpoisoned(self.part.state.lock());
        let (kept, is_left) = (std::mem::take(&mut state.kept), state.is_left);
        state.ended = true;
        drop((state, parts));
        // Opens the gate, if nothing else keeps it closed.
        drop(kept);
        if is_left {
            let (part, took) = (self.part.to_string(), self.part.age());
            tracing::warn!(part, ?took, how, "a part of a release that was left behind has ended");
        }
    }
}
