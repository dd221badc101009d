//! A clock on which time passes faster, so that a release waits less for numbers that other threads
//! keep moving, and more releases fit into a storm.

use std::time::Duration;

use lowtide::SystemClock;
use lowtide_release::Clock;

/// So many seconds pass on the clock in one second.
pub(crate) const SPEED: u32 = 20;

/// The machine's clock, [`SPEED`] times as fast.
#[derive(Default)]
pub(crate) struct FastClock(SystemClock);

impl Clock for FastClock {
    fn now(&self) -> Duration {
        self.0.now() * SPEED
    }

    fn pause(&self, duration: Duration) {
        self.0.pause(duration / SPEED);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.0.within(limit / SPEED, work)
    }
}
