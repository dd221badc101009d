//! A climb as its rungs and hooks see it: by which clock it waits, whether it should go on, and which
//! releaser it belongs to.
//!
//! It is an argument, and so is everything that follows from it. A rung or a hook that asks for a
//! release passes its climb on ([`Request::within`](crate::Request::within)), on whatever thread it
//! runs by then. Code that has no argument, such as a `Drop`, is recognised by its thread, if it is a
//! thread that the climb runs on.
//!
//! A part that exceeds its limit is told to stop by its own handle: `go_on` says no from then on.

use std::fmt;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use lowtide_types::{RungName, ThreadMark, ThreadMarks};

use super::left_behind::{Ending, LeftBehind, Part, PartName};
use crate::clock::Clock;
use crate::failure::{Failure, message};
use crate::gate::{Gate, Inside};
use crate::sync::unpoisoned;

/// Asked at every safe point of a release: whether it should go on.
pub type GoOn = Arc<dyn Fn() -> bool + Send + Sync>;

/// The time that a part has to stop after its limit. Most stop at their next safe point.
const GRACE: Duration = Duration::from_secs(1);
/// The first and the longest pause between two looks whether it has stopped.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// One climb of a ladder, as its rungs and hooks see it. Cheap to clone.
#[derive(Clone)]
pub struct Climb {
    clock: Arc<dyn Clock>,
    go_on: Option<GoOn>,
    /// The releaser that climbs. Its address is its identity.
    releaser: Arc<()>,
    /// Upgrades while the climb is under way.
    alive: Weak<()>,
    /// The climb that this one was asked for in.
    outer: Option<Arc<Climb>>,
    /// The gate that the climb keeps closed.
    closes: Option<Gate>,
    left_behind: Arc<LeftBehind>,
    part: ClimbPart,
}

/// The part of a climb that a handle was given to.
#[derive(Clone, Default)]
struct ClimbPart {
    /// Whether work must not run beside it.
    takes: bool,
    /// The rung that it is, or is part of.
    rung: Option<RungName>,
    /// Set when the part, or one that it is part of, has exceeded its limit.
    cut_off: Vec<Arc<AtomicBool>>,
}

/// The result of a part that ran to its end, or its panic.
type Outcome<T> = thread::Result<Result<T, Failure>>;

/// How a part of a climb ended.
pub(crate) enum Ran<T> {
    Ended(Outcome<T>),
    /// It exceeded its limit and stopped when it was told to; its result, if it has one.
    CutOff(Option<T>),
    /// It exceeded its limit and still runs.
    LeftBehind,
    /// An earlier one of the same name still runs, for this long. This one was not started.
    StillRuns(Duration),
    /// No thread could be started for it.
    NoThread,
}

impl<T> Ran<T> {
    /// Describes why a part did not run to its end within its limit, for receipts.
    pub(crate) fn why_not(&self, limit: Duration) -> Option<String> {
        let limit_ms = limit.as_millis();
        match self {
            Ran::Ended(_) => None,
            Ran::CutOff(_) => Some(format!("did not end within {limit_ms} ms and was stopped")),
            Ran::LeftBehind => {
                Some(format!("did not end within {limit_ms} ms and was left behind"))
            }
            Ran::StillRuns(age) => {
                let age = age.as_secs_f64();
                Some(format!("still running since {age:.1} s ago; not started again"))
            }
            Ran::NoThread => Some("no thread could be started for it".to_owned()),
        }
    }
}

/// Keeps a climb under way, on this thread. Dropping it ends the climb.
pub(crate) struct UnderWay {
    _alive: Arc<()>,
    _here: Here,
}

thread_local! {
    /// The climbs that this thread runs a part of. Code that has no argument, such as a `Drop`, is
    /// recognised by it.
    static HERE: ThreadMarks<Climb> = const { ThreadMarks::new() };
}

/// A part of a climb that this thread runs. Dropping it, on this thread, ends the part.
struct Here {
    /// Also of the climbs that this one was asked for in: they wait for it.
    _inside: Vec<Inside>,
    _part: ThreadMark<Climb>,
}

impl Here {
    fn new(climb: &Climb) -> Here {
        let with_outer = iter::successors(Some(climb), |climb| climb.outer.as_deref());
        let closed =
            with_outer.filter(|climb| !climb.is_over()).filter_map(|one| one.closes.as_ref());
        let inside = closed.map(Gate::inside).collect();
        Here { _inside: inside, _part: ThreadMarks::set(&HERE, climb.clone()) }
    }
}

/// What a climb belongs to.
pub(crate) struct Origin<'a> {
    pub(crate) releaser: &'a Arc<()>,
    pub(crate) left_behind: &'a Arc<LeftBehind>,
    /// The gate that the climb keeps closed.
    pub(crate) closes: Option<&'a Gate>,
    /// The climb that it was asked for in.
    pub(crate) within: Option<&'a Climb>,
}

impl Climb {
    /// Begins a climb of a releaser on this thread.
    pub(crate) fn begin(
        clock: Arc<dyn Clock>,
        go_on: Option<GoOn>,
        origin: &Origin<'_>,
    ) -> (Climb, UnderWay) {
        let alive = Arc::new(());
        let climb = Climb {
            clock,
            go_on,
            releaser: Arc::clone(origin.releaser),
            alive: Arc::downgrade(&alive),
            outer: origin.within.cloned().or_else(Climb::here).map(Arc::new),
            closes: origin.closes.cloned(),
            left_behind: Arc::clone(origin.left_behind),
            part: ClimbPart::default(),
        };
        let here = Here::new(&climb);
        (climb, UnderWay { _alive: alive, _here: here })
    }

    /// Returns the innermost climb that this thread runs a part of.
    pub(crate) fn here() -> Option<Climb> {
        ThreadMarks::innermost(&HERE)
    }

    /// Returns the clock of this climb. A rung that waits, waits by it.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Returns whether the climb should go on. Rungs and hooks that take long ask at every safe point
    /// and end early, with what they have done so far, when it says no: the caller wants to stop, the
    /// time limit is over, or the climb has ended.
    pub fn go_on(&self) -> bool {
        !self.is_cut_off() && !self.is_over() && !self.is_stopped() && !self.clock.is_interrupted()
    }

    /// Returns whether the climb has ended. A rung that exceeded its limit and was left behind begins
    /// nothing new then.
    pub fn is_over(&self) -> bool {
        self.alive.strong_count() == 0
    }

    fn is_cut_off(&self) -> bool {
        self.part.cut_off.iter().any(|cut_off| cut_off.load(SeqCst))
    }

    /// Whether the caller of this release wants it to stop. A panic of its question means so.
    pub(crate) fn is_stopped(&self) -> bool {
        self.go_on.as_ref().is_some_and(|go_on| {
            // A rung may ask on a thread of its own.
            let _here = Here::new(self);
            !catch_unwind(AssertUnwindSafe(|| go_on())).unwrap_or(false)
        })
    }

    /// Whether this climb, or one that it was asked for in, is a climb of this releaser and has not
    /// ended: a release of that releaser would wait for itself.
    pub(crate) fn is_climb_of(&self, releaser: &Arc<()>) -> bool {
        let is_own = Arc::ptr_eq(&self.releaser, releaser) && !self.is_over();
        is_own || self.outer.as_ref().is_some_and(|outer| outer.is_climb_of(releaser))
    }

    /// Whether work must not run beside this part.
    pub(crate) fn takes(&self) -> bool {
        self.part.takes
    }

    /// Runs a part of the climb within a time limit, on a thread of its own where the clock has one.
    /// The part is told to stop at the limit. If it does not, it is left behind.
    pub(crate) fn run_within<T: Send + 'static>(
        &self,
        name: PartName,
        limit: Duration,
        takes: bool,
        part: impl FnOnce(&Climb) -> Result<T, Failure> + Send + 'static,
    ) -> Ran<T> {
        if let Some(age) = self.left_behind.running(&name) {
            return Ran::StillRuns(age);
        }
        let (mut climb, cut_off) = (self.clone(), Arc::new(AtomicBool::new(false)));
        climb.part.takes = takes;
        climb.part.cut_off.push(Arc::clone(&cut_off));
        if let PartName::Rung(rung) = &name {
            climb.part.rung = Some(rung.clone());
        }
        let running = Part::new(name, self.part.rung.clone(), takes, Arc::clone(&self.clock));
        let (part_of, left_behind) = (Arc::clone(&running), Arc::clone(&self.left_behind));
        let mut ending = Ending { part: part_of, left_behind, how: "it never began".to_owned() };
        let ended: Arc<Mutex<Option<Outcome<T>>>> = Arc::default();
        let result = Arc::clone(&ended);
        let work = move || {
            let here = Here::new(&climb);
            let outcome = catch_unwind(AssertUnwindSafe(|| part(&climb)));
            drop(here);
            ending.how = match &outcome {
                Ok(Ok(_)) => "done".to_owned(),
                Ok(Err(failure)) => format!("failed: {failure}"),
                Err(panic) => format!("panicked: {}", message(&**panic)),
            };
            *unpoisoned(result.lock()) = Some(outcome);
            drop(ending);
        };
        let in_time = self.clock.within(limit, Box::new(work));
        if !in_time {
            cut_off.store(true, SeqCst);
            self.wait_for(&running);
        }
        // Decided before the result is looked for: it may end at this moment.
        let still_runs = !in_time && self.left_behind.add(&running);
        let outcome = unpoisoned(ended.lock()).take();
        match outcome {
            _ if still_runs => Ran::LeftBehind,
            Some(outcome) if in_time => Ran::Ended(outcome),
            Some(outcome) => Ran::CutOff(outcome.ok().and_then(Result::ok)),
            None => Ran::NoThread,
        }
    }

    fn wait_for(&self, part: &Part) {
        let (began, mut pause) = (self.clock.now(), FIRST_PAUSE);
        while !part.has_ended() && self.clock.since(began) < GRACE && !self.clock.is_interrupted() {
            self.clock.pause(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl fmt::Debug for Climb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_over() { "over" } else { "under way" };
        write!(f, "Climb({state})")
    }
}
