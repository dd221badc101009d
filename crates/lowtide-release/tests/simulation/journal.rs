//! What really happened, written down by the simulation itself: nothing in here was told by the
//! code that is tested.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lowtide_device::Device;
use lowtide_release::{
    Climb, Climbed, Expectation, Failure, Gate, Inventory, Rung, RungName, Touch,
};

use crate::clock::Time;

/// A rung's turn.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    pub(crate) rung: String,
    /// Whether it was lowtide's rung, and not one of ours under its name.
    pub(crate) is_real: bool,
    /// What it said beforehand, or with what it panicked.
    pub(crate) expected: Result<Expectation, String>,
    /// `None` where it was not climbed, or not yet.
    pub(crate) climb: Option<Effect>,
    /// The clock left it behind before it had done anything.
    pub(crate) is_left: bool,
    /// Something of it goes on when it has ended: memory comes back in somebody else's time.
    pub(crate) goes_on: bool,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) took: Duration,
    pub(crate) said: Said,
    /// Whether work could have passed the gate meanwhile.
    pub(crate) gate_was_open: bool,
    /// Who failed in it, because we wanted it so.
    pub(crate) struck: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Climbed { touched: Vec<Touch>, failures: Vec<String> },
    Failed(String),
    Panicked(String),
}

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) visits: Vec<Visit>,
    struck: Vec<String>,
    /// What somebody found wrong where an assertion would have been caught as a panic.
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct Journal {
    real: Device,
    time: Time,
    /// The gate of the releaser, once there is one.
    pub(crate) gate: OnceLock<Gate>,
    notes: Mutex<Notes>,
}

impl Journal {
    pub(crate) fn new(real: &Device, time: &Time) -> Journal {
        let (real, time) = (real.clone(), time.clone());
        Journal { real, time, gate: OnceLock::new(), notes: Mutex::default() }
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel says is in use, past every fault and every gauge.
    pub(crate) fn in_use(&self) -> u64 {
        self.real.usage().unwrap().in_use().0
    }

    /// Somebody is about to fail or to panic.
    pub(crate) fn strike(&self, who: &str) {
        self.notes().struck.push(who.to_owned());
    }

    /// The rung under way, or a hook of it, is left behind.
    pub(crate) fn leave(&self, is_rung: bool) {
        if let Some(visit) = self.notes().visits.last_mut() {
            (visit.is_left, visit.goes_on) = (is_rung, true);
        }
    }

    fn climbed(&self, rung: &str, climb: Effect) {
        let mut notes = self.notes();
        let visits = &mut notes.visits;
        let is_this = |visit: &Visit| visit.rung == rung && visit.climb.is_none();
        // The last one asked; or, if that is another, one that was left behind and goes on.
        let at = match visits.last() {
            Some(last) if is_this(last) && !last.is_left => Some(visits.len() - 1),
            _ => visits.iter().position(|visit| is_this(visit) && visit.is_left),
        };
        match at {
            Some(at) => visits[at].climb = Some(climb),
            None => notes.wrong.push(format!("{rung} was climbed and not asked before")),
        }
    }
}

impl Visit {
    /// Whether it applied, so that it was climbed, and the device asked again.
    pub(crate) fn is_climbed(&self) -> bool {
        matches!(self.expected, Ok(Expectation::Bytes(_)))
    }
}

/// A rung that is watched.
pub(crate) struct Watched {
    pub(crate) rung: Arc<dyn Rung>,
    pub(crate) is_real: bool,
    pub(crate) journal: Arc<Journal>,
}

impl Rung for Watched {
    fn name(&self) -> RungName {
        self.rung.name()
    }

    fn limit(&self) -> Duration {
        self.rung.limit()
    }

    fn lets_work_go_on(&self) -> bool {
        self.rung.lets_work_go_on()
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        let said = catch_unwind(AssertUnwindSafe(|| self.rung.expect(inventory)));
        let expected = match &said {
            Ok(expectation) => Ok(expectation.clone()),
            Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_default()),
        };
        let (rung, is_real) = (self.name().to_string(), self.is_real);
        let visit = Visit { rung, is_real, expected, climb: None, is_left: false, goes_on: false };
        self.journal.notes().visits.push(visit);
        said.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        let Journal { time, gate, .. } = &*self.journal;
        let gate_was_open = gate.get().is_some_and(|gate| gate.state().open);
        let (before, began) = (self.journal.in_use(), time.now());
        let already = self.journal.notes().struck.len();
        let said = catch_unwind(AssertUnwindSafe(|| self.rung.climb(inventory, climb)));
        let (after, took) = (self.journal.in_use(), time.now().saturating_sub(began));
        let struck = self.journal.notes().struck.split_off(already);
        let told = match &said {
            Ok(Ok(Climbed { touched, failures, .. })) => {
                Said::Climbed { touched: touched.clone(), failures: failures.clone() }
            }
            Ok(Err(failure)) => Said::Failed(failure.to_string()),
            Err(panic) => {
                Said::Panicked(panic.downcast_ref::<String>().cloned().unwrap_or_default())
            }
        };
        let effect = Effect { before, after, took, said: told, gate_was_open, struck };
        self.journal.climbed(self.name().as_str(), effect);
        said.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
