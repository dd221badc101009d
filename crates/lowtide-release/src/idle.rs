//! The idle policy: when memory that nobody uses is given back by itself.
//!
//! It decides and does nothing else: whoever asks, does the release. It needs all of R26: switched
//! on, a task has finished, no other is active, something is there to unload. On top of these comes
//! a quiet time, and patience that is learned: where tasks come back soon after a release, what was
//! freed had to be loaded again, so the quiet time doubles; where the memory was left alone for
//! long, it halves again.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use crate::Clock;
use crate::idle_options::IdleOptions;
use crate::sync::{Arc, Mutex, MutexGuard};

/// Whether to release now, and if not, why not.
#[derive(Debug)]
#[must_use = "a claim that nobody takes counts as a release"]
pub enum Decision {
    /// Now. It is the only claim until it is dropped.
    Release(Claim),
    /// It is switched off.
    Off,
    /// A release that was claimed earlier is at work.
    Underway,
    /// Tasks are running.
    Active {
        /// So many.
        count: usize,
    },
    /// No task has finished since the last release, or ever.
    NothingRan,
    /// The last task finished too short a time ago.
    Wait {
        /// Until the quiet time is over, if nothing runs.
        left: Duration,
    },
    /// All of that is given, but nothing would be freed.
    NothingToUnload,
}

/// What is known under the lock.
#[derive(Debug)]
struct Books {
    active: usize,
    /// Tasks that ever began.
    began: u64,
    /// When the last task finished, if one has since the last claim.
    finished: Option<Duration>,
    /// Whether a claim lives.
    claimed: bool,
    /// When the last release was done, if no task began since.
    released: Option<Duration>,
    /// The quiet time, in times of what the options ask for.
    times: u32,
}

struct Inner {
    options: IdleOptions,
    clock: std::sync::Arc<dyn Clock>,
    books: Mutex<Books>,
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
/// if let Decision::Release(claim) = idle.due(|| true) {
///     // … release …
///     claim.done();
/// }
/// assert!(matches!(idle.due(|| true), Decision::NothingRan));
/// # Ok::<(), lowtide_release::ParseIdleError>(())
/// ```
#[derive(Clone)]
pub struct Idle {
    inner: Arc<Inner>,
}

impl Idle {
    /// A policy for which nothing has run so far.
    pub fn new(options: IdleOptions, clock: std::sync::Arc<dyn Clock>) -> Idle {
        let books =
            Books { active: 0, began: 0, finished: None, claimed: false, released: None, times: 1 };
        Idle { inner: Arc::new(Inner { options, clock, books: Mutex::new(books) }) }
    }

    /// What it was made with.
    pub fn options(&self) -> IdleOptions {
        self.inner.options
    }

    /// A task begins; it has finished when this is dropped. Never waits: whether it may work while
    /// a release goes on is the gate's affair.
    pub fn task(&self) -> Task {
        let now = self.now();
        let mut books = self.books();
        books.active += 1;
        books.began += 1;
        if let Some(released) = books.released.take() {
            books.learn(&self.inner.options, now.saturating_sub(released));
        }
        Task { idle: self.clone() }
    }

    /// Whether to release now. What there is to unload is asked last and only where all else is
    /// given, so it may cost something; no lock is held meanwhile.
    pub fn due(&self, something_to_unload: impl FnOnce() -> bool) -> Decision {
        let now = self.now();
        let missing = self.missing(&self.books(), now);
        if let Some(decision) = missing {
            return decision;
        }
        if !something_to_unload() {
            return Decision::NothingToUnload;
        }
        // A task may have begun while that was asked, or somebody else have claimed.
        let mut books = self.books();
        if let Some(decision) = self.missing(&books, now) {
            return decision;
        }
        books.claimed = true;
        // From here on only tasks that finish later count towards the next release.
        books.finished = None;
        Decision::Release(Claim { idle: self.clone(), began: books.began, released: true })
    }

    /// The condition that is missing, if any but the last is.
    fn missing(&self, books: &Books, now: Duration) -> Option<Decision> {
        let options = &self.inner.options;
        if !options.enabled {
            return Some(Decision::Off);
        }
        if books.claimed {
            return Some(Decision::Underway);
        }
        if books.active > 0 {
            return Some(Decision::Active { count: books.active });
        }
        let Some(finished) = books.finished else {
            return Some(Decision::NothingRan);
        };
        let left = books.quiet(options).saturating_sub(now.saturating_sub(finished));
        (!left.is_zero()).then_some(Decision::Wait { left })
    }

    /// Asked without the lock, so threads may come out of order: later times win.
    fn now(&self) -> Duration {
        // Switched off, not even the clock is asked.
        if self.inner.options.enabled { self.inner.clock.now() } else { Duration::ZERO }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.inner.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn quiet(&self, options: &IdleOptions) -> Duration {
        options.after.saturating_mul(self.times)
    }

    /// A task came after the memory had been left alone for so long.
    fn learn(&mut self, options: &IdleOptions, alone: Duration) {
        if alone < options.after {
            self.times = self.times.saturating_mul(2).min(options.calm.max(1));
        } else if alone > self.quiet(options) {
            self.times = (self.times / 2).max(1);
        }
    }
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle")
            .field("options", &self.inner.options)
            .field("books", &self.inner.books)
            .finish_non_exhaustive()
    }
}

/// A task that is running; dropping it finishes it.
#[derive(Debug)]
#[must_use = "dropping it finishes the task"]
pub struct Task {
    idle: Idle,
}

impl Drop for Task {
    fn drop(&mut self) {
        let now = self.idle.now();
        let mut books = self.idle.books();
        books.active -= 1;
        books.finished = books.finished.max(Some(now));
    }
}

/// The right to release, for one at a time.
#[derive(Debug)]
#[must_use = "dropping it says that the release was done"]
pub struct Claim {
    idle: Idle,
    /// Tasks that had begun when it was given.
    began: u64,
    /// Whether there was a release, as far as is known.
    released: bool,
}

impl Claim {
    /// The release was done, whatever came of it. The next needs another task to finish. Dropping
    /// says the same, so a release that fails is not tried again and again.
    pub fn done(self) {
        drop(self);
    }

    /// There was no release, because somebody was in the way: it is due again when another quiet
    /// time has passed.
    pub fn put_back(mut self) {
        self.released = false;
    }

    /// Whether a task began since: it will want what is being freed.
    pub fn is_stale(&self) -> bool {
        self.idle.books().began != self.began
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let now = self.idle.now();
        let mut books = self.idle.books();
        books.claimed = false;
        if !self.released {
            books.finished = books.finished.max(Some(now));
        } else if books.began == self.began {
            books.released = Some(now);
        } else {
            books.learn(&self.idle.inner.options, Duration::ZERO);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);

    fn idle(after: Duration) -> (Idle, ManualClock) {
        let clock = ManualClock::default();
        let options = IdleOptions { enabled: true, after, ..IdleOptions::default() };
        (Idle::new(options, std::sync::Arc::new(clock.clone())), clock)
    }

    fn claim(idle: &Idle) -> Claim {
        match idle.due(|| true) {
            Decision::Release(claim) => claim,
            other => panic!("{other:?}"),
        }
    }

    /// What is still to wait for, in seconds.
    fn left(idle: &Idle) -> u64 {
        match idle.due(|| panic!("asked too early")) {
            Decision::Wait { left } => left.as_secs(),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a task, and releases as soon as it is due; says how long that took, in seconds.
    fn round(idle: &Idle, clock: &ManualClock) -> u64 {
        drop(idle.task());
        let quiet = left(idle);
        clock.advance(Duration::from_secs(quiet));
        claim(idle).done();
        quiet
    }

    #[test]
    fn r26_all_four_conditions_are_needed() {
        for case in 0..16 {
            let [enabled, finished, active, something] = [1, 2, 4, 8].map(|bit| case & bit != 0);
            let clock = ManualClock::default();
            let options = IdleOptions { enabled, after: SECOND, ..IdleOptions::default() };
            let idle = Idle::new(options, std::sync::Arc::new(clock.clone()));
            if finished {
                drop(idle.task());
            }
            let running = active.then(|| idle.task());
            clock.advance(SECOND);
            let decision = idle.due(|| something);
            let as_wanted = match (enabled, active, finished, something) {
                (false, ..) => matches!(decision, Decision::Off),
                (_, true, ..) => matches!(decision, Decision::Active { count: 1 }),
                (_, _, false, _) => matches!(decision, Decision::NothingRan),
                (.., false) => matches!(decision, Decision::NothingToUnload),
                _ => matches!(decision, Decision::Release(_)),
            };
            assert!(as_wanted, "{case}: {decision:?}");
            drop(running);
        }
    }

    #[test]
    fn r25_off_changes_nothing() {
        struct Untouched;

        impl Clock for Untouched {
            fn now(&self) -> Duration {
                panic!("switched off, and asked for the time")
            }

            fn pause(&self, _duration: Duration) {
                self.now();
            }

            fn within(&self, _limit: Duration, _work: Box<dyn FnOnce() + Send>) -> bool {
                self.now() < Duration::ZERO
            }
        }

        let idle = Idle::new(IdleOptions::default(), std::sync::Arc::new(Untouched));
        let decide = || idle.due(|| panic!("switched off, and asked for something to unload"));
        assert!(matches!(decide(), Decision::Off));
        let tasks = [idle.task(), idle.task()];
        assert_eq!(idle.books().active, 2);
        assert!(matches!(decide(), Decision::Off));
        drop(tasks);
        assert_eq!(idle.books().active, 0);
        assert!(matches!(decide(), Decision::Off));
    }

    #[test]
    fn the_quiet_time_counts_from_the_last_task_that_finished() {
        let (idle, clock) = idle(10 * SECOND);
        let (long, short) = (idle.task(), idle.task());
        drop(short);
        clock.advance(60 * SECOND);
        assert!(matches!(idle.due(|| true), Decision::Active { count: 1 }));
        drop(long);
        clock.advance(4 * SECOND);
        assert_eq!(left(&idle), 6);
        // One that comes in between begins it anew.
        drop(idle.task());
        assert_eq!(left(&idle), 10);
        clock.advance(10 * SECOND);
        claim(&idle).done();
    }

    #[test]
    fn r26_a_release_needs_a_task_that_finished_since_the_last() {
        let (idle, clock) = idle(SECOND);
        for ends in [Claim::done, drop] {
            drop(idle.task());
            clock.advance(60 * SECOND);
            ends(claim(&idle));
            clock.advance(60 * SECOND);
            assert!(matches!(idle.due(|| true), Decision::NothingRan));
        }
        // Where there was nothing to unload, it stays due.
        drop(idle.task());
        clock.advance(60 * SECOND);
        assert!(matches!(idle.due(|| false), Decision::NothingToUnload));
        claim(&idle).done();
    }

    #[test]
    fn there_is_one_claim_at_a_time_and_it_knows_that_a_task_came() {
        let (idle, clock) = idle(SECOND);
        drop(idle.task());
        clock.advance(SECOND);
        let claim_one = claim(&idle);
        assert!(matches!(idle.due(|| true), Decision::Underway));
        assert!(!claim_one.is_stale());
        drop(idle.task());
        assert!(claim_one.is_stale(), "it began and is over already");
        clock.advance(60 * SECOND);
        assert!(matches!(idle.due(|| true), Decision::Underway));
        claim_one.done();
        // That task counts for the next release: what it loaded came after the claim.
        assert!(!claim(&idle).is_stale());
    }

    #[test]
    fn a_task_that_begins_while_the_memory_is_looked_at_is_seen() {
        let (idle, clock) = idle(SECOND);
        drop(idle.task());
        clock.advance(SECOND);
        let mut task = None;
        let decision = idle.due(|| {
            task = Some(idle.task());
            true
        });
        assert!(matches!(decision, Decision::Active { count: 1 }));
        drop(task);
        assert_eq!(left(&idle), 1);
    }

    #[test]
    fn a_claim_that_is_put_back_is_due_again_after_the_quiet_time() {
        let (idle, clock) = idle(10 * SECOND);
        drop(idle.task());
        clock.advance(60 * SECOND);
        claim(&idle).put_back();
        assert_eq!(left(&idle), 10);
        clock.advance(10 * SECOND);
        // Nothing was freed, so a task that comes now is not too soon.
        claim(&idle).put_back();
        drop(idle.task());
        assert_eq!(left(&idle), 10);
    }

    #[test]
    fn tasks_that_come_back_too_soon_double_the_quiet_time_up_to_the_limit() {
        let (idle, clock) = idle(10 * SECOND);
        let quiet = [(); 7].map(|()| round(&idle, &clock));
        assert_eq!(quiet, [10, 20, 40, 80, 160, 160, 160]);
    }

    #[test]
    fn of_tasks_that_come_after_one_release_only_the_first_tells() {
        let (idle, clock) = idle(10 * SECOND);
        round(&idle, &clock);
        drop((idle.task(), idle.task()));
        assert_eq!(left(&idle), 20);
        drop(idle.task());
        assert_eq!(left(&idle), 20);
    }

    #[test]
    fn a_task_that_comes_during_the_release_is_too_soon() {
        let (idle, clock) = idle(10 * SECOND);
        drop(idle.task());
        clock.advance(10 * SECOND);
        let claim_one = claim(&idle);
        clock.advance(60 * SECOND);
        let task = idle.task();
        claim_one.done();
        drop(task);
        assert_eq!(left(&idle), 20);
        // Only once: the next task has seen no other release.
        drop(idle.task());
        assert_eq!(left(&idle), 20);
    }

    #[test]
    fn memory_left_alone_for_longer_than_the_quiet_time_halves_it() {
        let (idle, clock) = idle(10 * SECOND);
        assert_eq!([(); 4].map(|()| round(&idle, &clock)), [10, 20, 40, 80]);
        // As long as the quiet time is neither too soon nor long.
        clock.advance(80 * SECOND);
        assert_eq!(round(&idle, &clock), 80);
        clock.advance(81 * SECOND);
        assert_eq!(round(&idle, &clock), 40);
        clock.advance(10 * SECOND);
        assert_eq!(round(&idle, &clock), 40);
        for quiet in [20, 10, 10] {
            clock.advance(81 * SECOND);
            assert_eq!(round(&idle, &clock), quiet);
        }
    }

    #[test]
    fn the_limit_may_be_any_number_and_one_means_that_nothing_is_learned() {
        for (calm, wanted) in [(0, [10, 10, 10]), (1, [10, 10, 10]), (3, [10, 20, 30])] {
            let clock = ManualClock::default();
            let options = IdleOptions { enabled: true, after: 10 * SECOND, calm };
            let idle = Idle::new(options, std::sync::Arc::new(clock.clone()));
            assert_eq!([(); 3].map(|()| round(&idle, &clock)), wanted);
        }
    }
}
