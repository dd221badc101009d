//! Calls that wait, and the clock they wait by.
//!
//! Python runs signal handlers only in its main thread, and only between its own instructions. So a
//! call of the main thread is done by another thread while the main thread checks for signals. Once
//! a handler raises, every wait of that call ends early, nothing new is begun, what was closed is
//! opened and what was lowered is restored. Then the exception is raised.
//!
//! Each call has a clock of its own, which its work gets as an argument. The clock knows whether
//! the call was interrupted, on whichever thread it is asked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide::release::Clock;
use lowtide_walk::call_method;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How often a wait checks whether the call was interrupted.
const LOOK: Duration = Duration::from_millis(20);
/// How long an interrupted call may take to restore things before it is left behind.
const GRACE: Duration = Duration::from_secs(5);
/// How long work with a time limit may take after an interrupt. Work inside of it has less.
const GRACE_OF_WORK: Duration = Duration::from_secs(2);

/// Runs work that waits, detached from the interpreter, so that Ctrl-C ends it. The work gets the
/// clock of this call.
pub(crate) fn waiting<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(Arc<CallClock>) -> T + Send + 'static,
) -> PyResult<T> {
    within_grace(py, GRACE, work)
}

/// Runs work that waits and has nothing to restore: Ctrl-C leaves it behind at once, and its result
/// is dropped when it ends.
pub(crate) fn held<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    within_grace(py, Duration::ZERO, |_| work())
}

fn within_grace<T: Send + 'static>(
    py: Python<'_>,
    grace: Duration,
    work: impl FnOnce(Arc<CallClock>) -> T + Send + 'static,
) -> PyResult<T> {
    let clock = Arc::new(CallClock::default());
    // At the end of the interpreter nothing can be imported, and no signal is handled.
    if !is_main_thread(py).unwrap_or(false) {
        return py
            .detach(|| catch_unwind(AssertUnwindSafe(|| work(clock))))
            .map_err(|panic| panicked(&*panic));
    }
    let (done, ended) = mpsc::sync_channel(1);
    let of_work = Arc::clone(&clock);
    let work = move || {
        // If nobody listens any more, the result is dropped with the message.
        let _ = done.send(catch_unwind(AssertUnwindSafe(|| work(of_work))));
    };
    let thread = thread::Builder::new().name("lowtide-call".to_owned()).spawn(work);
    thread.map_err(|error| PyRuntimeError::new_err(format!("no thread for the call: {error}")))?;
    let ended = Mutex::new(ended);
    let look = || lock(&ended).recv_timeout(LOOK);
    let mut raised: Option<(PyErr, Instant)> = None;
    loop {
        match (py.detach(look), &raised) {
            (Ok(ended), None) => return ended.map_err(|panic| panicked(&*panic)),
            (Ok(_) | Err(RecvTimeoutError::Disconnected), Some(_)) => break,
            (Err(RecvTimeoutError::Disconnected), None) => {
                return Err(PyRuntimeError::new_err("a thread of lowtide ended without a result"));
            }
            (Err(RecvTimeoutError::Timeout), Some((_, since))) if since.elapsed() > grace => break,
            (Err(RecvTimeoutError::Timeout), _) => {
                if let Err(error) = py.check_signals() {
                    clock.interrupt();
                    let impatient = raised.is_some();
                    raised = Some((error, Instant::now()));
                    if impatient {
                        break;
                    }
                }
            }
        }
    }
    Err(raised.map_or_else(|| PyRuntimeError::new_err("interrupted"), |(error, _)| error))
}

/// Locks a mutex, whether a thread has panicked with it or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main: Option<u64> = call_method(&threading, "main_thread")?.getattr("ident")?.extract()?;
    Ok(main == Some(call_method(&threading, "get_ident")?.extract()?))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    PyRuntimeError::new_err(format!("lowtide broke an invariant of its own: {text}"))
}

/// The clock of one call: real time, until the call is interrupted.
#[derive(Debug)]
pub(crate) struct CallClock {
    origin: Instant,
    interrupted: AtomicBool,
    /// How many pieces of work with a time limit are running inside each other.
    depth: AtomicU32,
}

impl Default for CallClock {
    fn default() -> CallClock {
        // One origin for all: times of one call are compared with those of others.
        static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        CallClock {
            origin: *ORIGIN.get_or_init(Instant::now),
            interrupted: AtomicBool::new(false),
            depth: AtomicU32::new(0),
        }
    }
}

impl CallClock {
    fn interrupt(&self) {
        self.interrupted.store(true, SeqCst);
    }
}

impl Clock for CallClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn pause(&self, duration: Duration) {
        let until = self.now() + duration;
        while !self.is_interrupted() {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK));
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(SeqCst)
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        if self.is_interrupted() {
            return false;
        }
        let grace = GRACE_OF_WORK / (1 + self.depth.fetch_add(1, SeqCst));
        let in_time = self.run(limit, grace, work);
        self.depth.fetch_sub(1, SeqCst);
        in_time
    }
}

impl CallClock {
    /// Runs work on another thread and waits for it no longer than `limit`, and no longer than
    /// `grace` after an interrupt. Returns whether it ended by then.
    fn run(&self, limit: Duration, grace: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        let (done, ended) = mpsc::channel::<()>();
        // A thread that does not start would take its work with it.
        let waiting = Arc::new(Mutex::new(Some(work)));
        let given = Arc::clone(&waiting);
        let take = |waiting: &Mutex<Option<Box<dyn FnOnce() + Send>>>| lock(waiting).take();
        let run = move || {
            if let Some(work) = take(&given) {
                work();
            }
            drop(done);
        };
        if thread::Builder::new().name("lowtide-rung".to_owned()).spawn(run).is_err() {
            // No thread can be had. That is not a time-out: the work is done here, where nobody can
            // leave it behind.
            if let Some(work) = take(&waiting) {
                work();
            }
            return true;
        }
        let mut until = self.now() + limit;
        let mut is_hurried = false;
        loop {
            let left = until.saturating_sub(self.now());
            // Nothing is ever sent: the channel closes when the work ends.
            if ended.recv_timeout(left.min(LOOK)) == Err(RecvTimeoutError::Disconnected) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            if !is_hurried && self.is_interrupted() {
                is_hurried = true;
                until = until.min(self.now() + grace);
            }
        }
    }
}
