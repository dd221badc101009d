//! The machine's clock. The crates underneath have none, so that everything in them can be tested
//! without waiting; here is where real time comes in.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
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
        let threads = thread::Builder::new().name("lowtide-rung".to_owned());
        within(threads, limit, work)
    }
}

fn within(threads: thread::Builder, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
    let (done, told) = mpsc::channel::<()>();
    // A thread that does not start would take its work with it.
    let waiting = Arc::new(Mutex::new(Some(work)));
    let take =
        |waiting: &Mutex<Option<_>>| waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    let given = Arc::clone(&waiting);
    let started = threads.spawn(move || {
        if let Some(work) = take(&given) {
            work();
        }
        drop(done);
    });
    if started.is_err() {
        // No thread can be had. That is not a time-out: the work is done here, where nobody can leave
        // it behind.
        if let Some(work) = take(&waiting) {
            work();
        }
        return true;
    }
    // Nothing is ever sent: the channel closes when the work ends.
    told.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected)
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

    #[test]
    fn work_is_done_although_no_thread_can_be_started() {
        let (told, done) = mpsc::channel();
        let work = Box::new(move || told.send(thread::current().id()).unwrap());
        // No machine has room for such a stack.
        let threads = thread::Builder::new().stack_size(usize::MAX / 4);
        assert!(within(threads, Duration::from_millis(1), work));
        assert_eq!(done.recv().unwrap(), thread::current().id());
    }
}
