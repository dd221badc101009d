//! The policy itself: tasks begin and finish, claims are given out one at a time.

use std::fmt;
use std::time::Duration;

use lowtide_device::neighbours::Neighbour;

use super::give_way::PuttingOff;
use super::options::IdleOptions;
use crate::clock::Clock;
use crate::fork::{self, ProcessMutex};
use crate::sync::{Arc, MutexGuard};

/// Whether a release is due, and if not, why.
#[derive(Debug)]
#[must_use = "a ticket that nobody takes counts as a release"]
pub enum Decision {
    /// A release is due. This is the only ticket until it is dropped.
    Release(Ticket),
    /// The policy is switched off.
    Off,
    /// An earlier ticket still exists.
    Underway,
    /// Tasks are running.
    Active {
        /// The number of running tasks.
        count: usize,
    },
    /// No task has finished since the last release, or ever.
    NothingRan,
    /// The quiet time is not over.
    Wait {
        /// The time until it is over, if no task runs.
        left: Duration,
    },
    /// Every other condition is met, but there is no memory to free.
    NothingToUnload,
    /// A release is put off for another process on the device, which has just started.
    GivesWay {
        /// The process.
        to: Neighbour,
    },
    /// The policy belongs to the parent process: a forked child inherited it.
    Inherited,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Release(_) => f.write_str("a release is due"),
            Decision::Off => f.write_str("free on idle is switched off"),
            Decision::Underway => f.write_str("an idle release is under way"),
            Decision::Active { count } => write!(f, "tasks are running: {count}"),
            Decision::NothingRan => f.write_str("no task has finished since the last release"),
            Decision::Wait { left } => {
                write!(f, "the quiet time is not over: {:.1} s are left", left.as_secs_f64())
            }
            Decision::Inherited => f.write_str(&fork::refusal("idle policy")),
            Decision::NothingToUnload => f.write_str("there is no memory to free"),
            Decision::GivesWay { to } => write!(f, "{to} and may be measuring free memory"),
        }
    }
}

/// The largest multiple of the configured quiet time that it grows to when tasks come back too soon.
const TIMES_MOST: u32 = 16;

/// What the policy remembers: tasks, the last ticket, and the quiet time it has learned.
#[derive(Debug, Default)]
struct Activity {
    /// The number of running tasks.
    active: usize,
    /// The number of tasks that ever began.
    began: u64,
    /// When the last task finished, if one has since the last ticket.
    finished: Option<Duration>,
    /// Whether a ticket exists.
    has_ticket: bool,
    /// When the last release ended, if no task has begun since.
    released: Option<Duration>,
    /// The quiet time, as a multiple of the configured one.
    times: u32,
    /// The processes for which releases are put off.
    putting_off: PuttingOff,
}

impl Activity {
    /// Returns the quiet time that a release waits for.
    fn quiet(&self, options: &IdleOptions) -> Duration {
        options.after.saturating_mul(self.times)
    }

    /// Adapts the quiet time: a task came after the memory had been left alone for this long.
    fn learn(&mut self, options: &IdleOptions, alone: Duration) {
        if alone < options.after {
            self.times = self.times.saturating_mul(2).min(TIMES_MOST);
        } else if alone > self.quiet(options) {
            self.times = (self.times / 2).max(1);
        }
    }
}

struct Inner {
    options: IdleOptions,
    clock: std::sync::Arc<dyn Clock>,
    activity: ProcessMutex<Activity>,
}

/// Counts tasks and decides when to release. Clones are the same policy.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use lowtide_release::{Decision, Idle, ManualClock};
///
/// let clock = ManualClock::default();
/// let idle = Idle::new("30s".parse()?, Arc::new(clock.clone()));
/// drop(idle.task());
/// assert!(matches!(idle.due(|| true), Decision::Wait { .. }));
/// clock.advance(Duration::from_secs(30));
/// if let Decision::Release(ticket) = idle.due(|| true) {
///     // … release …
///     ticket.done();
/// }
/// assert!(matches!(idle.due(|| true), Decision::NothingRan));
/// # Ok::<(), lowtide_release::ParseIdleError>(())
/// ```
#[derive(Clone)]
pub struct Idle {
    inner: Arc<Inner>,
}

impl Idle {
    /// Creates a policy for which no task has run so far.
    pub fn new(options: IdleOptions, clock: std::sync::Arc<dyn Clock>) -> Idle {
        let activity = ProcessMutex::new(Activity { times: 1, ..Activity::default() });
        Idle { inner: Arc::new(Inner { options, clock, activity }) }
    }

    /// Returns the options of the policy.
    pub fn options(&self) -> IdleOptions {
        self.inner.options
    }

    /// Returns the quiet time that a release waits for now: that of the options, or a multiple of it that
    /// was learned.
    pub fn quiet(&self) -> Duration {
        self.activity().map_or(self.inner.options.after, |own| own.quiet(&self.inner.options))
    }

    /// Returns for how long a release still waits if no task begins; `None` where none is due.
    pub fn left(&self) -> Option<Duration> {
        let now = self.now();
        match self.missing(&*self.activity()?, now)? {
            Decision::Wait { left } => Some(left),
            _ => None,
        }
    }

    /// Begins a task; it finishes when the guard is dropped. Never waits: whether the task may work
    /// during a release is decided by the gate. In a forked child that inherited the policy, the task
    /// counts for nothing.
    pub fn task(&self) -> Task {
        let task = Task { idle: self.clone() };
        let now = self.now();
        let Some(mut activity) = self.activity() else { return task };
        activity.active += 1;
        activity.began += 1;
        activity.putting_off.end();
        if let Some(released) = activity.released.take() {
            activity.learn(&self.inner.options, now.saturating_sub(released));
        }
        drop(activity);
        task
    }

    /// Decides as [`Idle::due_beside`], for a program that is alone on its device.
    pub fn due(&self, something_to_unload: impl FnOnce() -> bool) -> Decision {
        self.due_beside(something_to_unload, Vec::new)
    }

    /// Decides whether to release now. `something_to_unload` is called only if every other condition is met,
    /// and `neighbours`, which returns the other processes on the device, after it. So they may be slow; no
    /// lock is held meanwhile.
    pub fn due_beside(
        &self,
        something_to_unload: impl FnOnce() -> bool,
        neighbours: impl FnOnce() -> Vec<Neighbour>,
    ) -> Decision {
        let now = self.now();
        let Some(activity) = self.activity() else { return Decision::Inherited };
        let missing = self.missing(&activity, now);
        drop(activity);
        if let Some(decision) = missing {
            return decision;
        }
        if !something_to_unload() {
            return Decision::NothingToUnload;
        }
        let limit = self.inner.options.give_way;
        let neighbours = if limit.is_zero() { Vec::new() } else { neighbours() };
        // A task may have begun during these calls, or another caller have taken the ticket.
        let Some(mut activity) = self.activity() else { return Decision::Inherited };
        if let Some(decision) = self.missing(&activity, now) {
            return decision;
        }
        if let Some(to) = activity.putting_off.decide(now, limit, neighbours) {
            return Decision::GivesWay { to };
        }
        activity.has_ticket = true;
        // From here on only tasks that finish later count towards the next release.
        activity.finished = None;
        Decision::Release(Ticket { idle: self.clone(), began: activity.began, released: true })
    }

    /// Returns the condition that is not met, except the last.
    fn missing(&self, activity: &Activity, now: Duration) -> Option<Decision> {
        let options = &self.inner.options;
        if !options.enabled {
            return Some(Decision::Off);
        }
        if activity.has_ticket {
            return Some(Decision::Underway);
        }
        if activity.active > 0 {
            return Some(Decision::Active { count: activity.active });
        }
        let Some(finished) = activity.finished else {
            return Some(Decision::NothingRan);
        };
        let left = activity.quiet(options).saturating_sub(now.saturating_sub(finished));
        if !left.is_zero() {
            return Some(Decision::Wait { left });
        }
        activity.putting_off.still(now).map(|to| Decision::GivesWay { to })
    }

    /// Whether a forked child inherited the policy.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inner.activity.is_inherited()
    }

    /// Whether a task has begun since there were this many. Nothing more is due in a forked child.
    fn has_begun_since(&self, began: u64) -> bool {
        self.activity().is_none_or(|activity| activity.began != began)
    }

    /// Reads the clock, without the lock: threads may come out of order, so later times win.
    fn now(&self) -> Duration {
        // A policy that is switched off does not even read the clock.
        if self.inner.options.enabled && !self.is_inherited() {
            self.inner.clock.now()
        } else {
            Duration::ZERO
        }
    }

    /// Locks the activity; `None` in a forked child.
    fn activity(&self) -> Option<MutexGuard<'_, Activity>> {
        self.inner.activity.lock()
    }
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle")
            .field("options", &self.inner.options)
            .field("activity", &self.inner.activity)
            .finish_non_exhaustive()
    }
}

/// A running task. Dropping it finishes the task.
#[derive(Debug)]
#[must_use = "dropping it finishes the task"]
pub struct Task {
    idle: Idle,
}

impl Drop for Task {
    fn drop(&mut self) {
        let now = self.idle.now();
        let Some(mut activity) = self.idle.activity() else { return };
        activity.active -= 1;
        activity.finished = activity.finished.max(Some(now));
    }
}

/// The right to release. There is one at a time.
#[derive(Debug)]
#[must_use = "dropping it says that the release was done"]
pub struct Ticket {
    idle: Idle,
    /// The number of tasks that had begun when the ticket was given.
    began: u64,
    /// Whether there was a release, as far as is known.
    released: bool,
}

impl Ticket {
    /// Says that the release ran, whatever its verdict. The next one needs another task to finish.
    /// Dropping the ticket says the same, so a release that fails is not repeated again and again.
    pub fn done(self) {
        drop(self);
    }

    /// Says that no release ran, because work was in the way. One is due again after another quiet
    /// time.
    pub fn put_back(mut self) {
        self.released = false;
    }

    /// Returns whether a task has begun since the ticket was given. It will need the memory that is
    /// being freed.
    pub fn is_stale(&self) -> bool {
        self.idle.has_begun_since(self.began)
    }

    /// Returns a function that answers as [`Ticket::is_stale`], for the release to ask on any thread.
    pub fn staleness(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (idle, began) = (self.idle.clone(), self.began);
        move || idle.has_begun_since(began)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let now = self.idle.now();
        let Some(mut activity) = self.idle.activity() else { return };
        activity.has_ticket = false;
        if !self.released {
            activity.finished = activity.finished.max(Some(now));
        } else if activity.began == self.began {
            activity.released = Some(now);
        } else {
            activity.learn(&self.idle.inner.options, Duration::ZERO);
        }
    }
}
