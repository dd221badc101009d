//! What the idle policy remembers: tasks, the last ticket, and the quiet time it has learned.

use std::time::Duration;

use super::options::IdleOptions;

#[derive(Debug)]
pub(super) struct Activity {
    /// The number of running tasks.
    pub(super) active: usize,
    /// The number of tasks that ever began.
    pub(super) began: u64,
    /// When the last task finished, if one has since the last ticket.
    pub(super) finished: Option<Duration>,
    /// Whether a ticket exists.
    pub(super) has_ticket: bool,
    /// When the last release ended, if no task has begun since.
    pub(super) released: Option<Duration>,
    /// The quiet time, as a multiple of the configured one.
    times: u32,
}

impl Activity {
    pub(super) fn new() -> Activity {
        Activity {
            active: 0,
            began: 0,
            finished: None,
            has_ticket: false,
            released: None,
            times: 1,
        }
    }

    /// Returns the quiet time that a release waits for.
    pub(super) fn quiet(&self, options: &IdleOptions) -> Duration {
        options.after.saturating_mul(self.times)
    }

    /// Adapts the quiet time: a task came after the memory had been left alone for this long.
    pub(super) fn learn(&mut self, options: &IdleOptions, alone: Duration) {
        if alone < options.after {
            self.times = self.times.saturating_mul(2).min(options.calm.max(1));
        } else if alone > self.quiet(options) {
            self.times = (self.times / 2).max(1);
        }
    }
}
