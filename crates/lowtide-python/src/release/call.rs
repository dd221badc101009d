//! Calls that wait, and the clock they wait by.
//!
//! Python runs signal handlers in its main thread only, and only between its own instructions. So a
//! call of the main thread is done by a thread of ours while the main thread looks for signals. Once
//! one raises, every wait of that call ends early, nothing new is begun, what was closed is opened and
//! what was lowered is restored; then the exception is raised.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide::Clock;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// So often it is looked whether somebody has interrupted.
const LOOK: Duration = Duration::from_millis(20);
/// So long an interrupted call may take to put things back; then it is left behind.
const GRACE: Duration = Duration::from_secs(5);
/// So long work that is waited for may still take then; the work inside of it has less.
const GRACE_OF_WORK: Duration = Duration::from_secs(2);

/// A call, as the threads that work for it know it.
#[derive(Clone)]
struct Call {
    interrupted: Arc<AtomicBool>,
    depth: u32,
}

thread_local! {
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// Does work that waits, without the interpreter, in a way that Ctrl-C ends.
pub(crate) fn waiting<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return py
            .detach(|| catch_unwind(AssertUnwindSafe(work)))
            .map_err(|panic| panicked(&*panic));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let call = Call { interrupted: Arc::clone(&interrupted), depth: 0 };
    let (done, told) = mpsc::sync_channel(1);
    let work = move || {
        CALL.set(Some(call));
        // Where nobody listens any more, what came of it goes with the message.
        let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
    };
    let thread = thread::Builder::new().name("lowtide-call".to_owned()).spawn(work);
    thread.map_err(|error| PyRuntimeError::new_err(format!("no thread to be had: {error}")))?;
    let told = Mutex::new(told);
    let look = || told.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK);
    let mut raised: Option<(PyErr, Instant)> = None;
    loop {
        match (py.detach(look), &raised) {
            (Ok(ended), None) => return ended.map_err(|panic| panicked(&*panic)),
            (Ok(_) | Err(RecvTimeoutError::Disconnected), Some(_)) => break,
            (Err(RecvTimeoutError::Disconnected), None) => {
                return Err(PyRuntimeError::new_err("a thread of lowtide ended without a word"));
            }
            (Err(RecvTimeoutError::Timeout), Some((_, since))) if since.elapsed() > GRACE => break,
            (Err(RecvTimeoutError::Timeout), _) => {
                if let Err(error) = py.check_signals() {
                    interrupted.store(true, SeqCst);
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

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main: Option<u64> = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
    Ok(main == Some(threading.call_method0("get_ident")?.extract()?))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    PyRuntimeError::new_err(format!("lowtide broke an invariant of its own: {text}"))
}

/// Real time, for whoever may be interrupted.
#[derive(Debug)]
pub(crate) struct PythonClock {
    origin: Instant,
}

impl Default for PythonClock {
    fn default() -> PythonClock {
        PythonClock { origin: Instant::now() }
    }
}

impl Clock for PythonClock {
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
        CALL.with_borrow(|call| call.as_ref().is_some_and(|call| call.interrupted.load(SeqCst)))
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        if self.is_interrupted() {
            return false;
        }
        let call = CALL.with_borrow(Clone::clone);
        let grace = GRACE_OF_WORK / (1 + call.as_ref().map_or(0, |call| call.depth));
        let call = call.map(|call| Call { depth: call.depth + 1, ..call });
        let (done, told) = mpsc::channel::<()>();
        let work = move || {
            CALL.set(call);
            work();
            drop(done);
        };
        if thread::Builder::new().name("lowtide-rung".to_owned()).spawn(work).is_err() {
            return false;
        }
        let mut until = self.now() + limit;
        let mut is_hurried = false;
        loop {
            let left = until.saturating_sub(self.now());
            // Nothing is ever sent: the channel closes when the work ends.
            if told.recv_timeout(left.min(LOOK)) == Err(RecvTimeoutError::Disconnected) {
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
