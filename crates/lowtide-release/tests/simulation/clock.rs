//! Time in the simulation: every pause is over at once, work in the gate ends when its hour comes,
//! what hangs is left behind at its limit, and some of that goes on only later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowtide_release::{Clock, OwnedPass};

use crate::journal::Journal;

type Work = Box<dyn FnOnce() + Send>;

/// The time that everybody reads.
#[derive(Clone, Default)]
pub(crate) struct Time(Arc<Mutex<Duration>>);

impl Time {
    pub(crate) fn now(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, now: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

pub(crate) struct Hours {
    time: Time,
    journal: Arc<Journal>,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// Work in the gate, and when it ends.
    working: Option<(OwnedPass, Duration)>,
    /// Which rung or hook from now is left behind before it has done anything, and how many pauses
    /// later it goes on. After the release, where there are not that many.
    leaves: Option<(u64, u64)>,
    left: Option<(Work, u64)>,
    /// A rung under way, and a hook in it: what was left behind goes on between two rungs.
    depth: u32,
}

impl Hours {
    pub(crate) fn new(time: &Time, journal: &Arc<Journal>) -> Hours {
        let (time, journal) = (time.clone(), Arc::clone(journal));
        Hours { time, journal, plan: Mutex::default() }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work that ends so much later.
    pub(crate) fn work(&self, pass: OwnedPass, lasts: Duration) {
        self.plan().working = Some((pass, self.now() + lasts));
    }

    /// The rung or hook of this number, counted from now, will be left behind and go on so many
    /// pauses later.
    pub(crate) fn leave(&self, number: u64, pauses: u64) {
        self.plan().leaves = Some((number, pauses));
    }

    /// Work ends, and what was left behind goes on to its end.
    pub(crate) fn finish(&self) {
        let mut plan = self.plan();
        plan.leaves = None;
        let (working, left) = (plan.working.take(), plan.left.take());
        drop(plan);
        drop(working);
        if let Some((work, _)) = left {
            work();
        }
    }

    // Hands the work back where it is not to be left behind.
    fn leave_behind(&self, work: Work) -> Option<Work> {
        let mut plan = self.plan();
        match plan.leaves.take() {
            Some((0, pauses)) => plan.left = Some((work, pauses + 1)),
            Some((number, pauses)) => {
                plan.leaves = Some((number - 1, pauses));
                return Some(work);
            }
            None => return Some(work),
        }
        self.journal.leave(plan.depth == 0);
        None
    }
}

impl Clock for Hours {
    fn now(&self) -> Duration {
        self.time.now()
    }

    fn pause(&self, duration: Duration) {
        let now = self.now() + duration;
        self.time.set(now);
        let mut plan = self.plan();
        let ended = plan.working.take_if(|(_, ends)| *ends <= now);
        let is_between = plan.depth == 0;
        if let Some((_, pauses)) = plan.left.as_mut().filter(|_| is_between) {
            *pauses = pauses.saturating_sub(1);
        }
        let left = plan.left.take_if(|(_, pauses)| is_between && *pauses == 0);
        drop(plan);
        drop(ended);
        if let Some((work, _)) = left {
            work();
        }
    }

    fn within(&self, limit: Duration, work: Work) -> bool {
        let until = self.now() + limit;
        let Some(work) = self.leave_behind(work) else {
            self.time.set(until);
            return false;
        };
        self.plan().depth += 1;
        work();
        self.plan().depth -= 1;
        let in_time = self.now() <= until;
        // Whoever waited did not wait for the rest.
        self.time.set(self.now().min(until));
        in_time
    }
}
