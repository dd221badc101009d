//! The machine's clock. The crates underneath have none, so that everything in them can be tested
//! without waiting; here is where real time comes in.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_release::Clock;

/// Real time.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { origin: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn pause(&self, duration: Duration) {
        thread::sleep(duration);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        let (done, told) = mpsc::channel::<()>();
        let work = move || {
            work();
            drop(done);
        };
        match thread::Builder::new().name("lowtide-rung".to_owned()).spawn(work) {
            // Nothing is ever sent: the channel closes when the work ends.
            Ok(_) => told.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected),
            // No thread to be had: its work went with it, and was not done.
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_is_waited_for_and_work_that_hangs_is_left_behind() {
        let clock = SystemClock::default();
        assert!(clock.within(Duration::from_secs(60), Box::new(|| ())));
        let (release, held) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = held.recv();
        };
        assert!(!clock.within(Duration::from_millis(1), Box::new(hangs)));
        drop(release);
        assert!(clock.now() >= Duration::from_millis(1));
    }
}
