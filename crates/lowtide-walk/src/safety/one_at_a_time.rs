//! One examination at a time, in the order in which they were asked for.
//!
//! Native, because Ctrl-C is raised between any two instructions of Python: one of them would be that
//! which has just taken a lock and not noted it yet. Nobody could ever release it.
//!
//! All state is read and changed with the interpreter attached. So it is whole in a forked child, too.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The first and the longest pause between two looks.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Has one thread examine the heap at a time.
///
/// Another thread waits for its turn, and so does a fork, but not for ever. A thread that has the turn
/// takes it again without waiting.
#[pyclass(frozen, module = "lowtide._native")]
pub struct Examining {
    limit: Duration,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    /// The thread that has the turn, and how often it has taken it.
    owner: Option<(ThreadId, usize)>,
    /// The threads that wait for their turn, the first one first.
    waiting: VecDeque<ThreadId>,
    /// The examinations and forks under way, in the order in which they began.
    parts: Vec<Part>,
}

/// Something that a thread does, and whether it had its turn by then.
#[derive(Clone, Copy)]
struct Part {
    thread: ThreadId,
    is_fork: bool,
    is_in_turn: bool,
}

impl Turns {
    /// Takes the turn if it is free, or this thread's. `waits` says that this thread waits for it.
    fn take(&mut self, thread: ThreadId, waits: bool) -> bool {
        match &mut self.owner {
            Some((owner, times)) if *owner == thread => *times += 1,
            // A signal handler may ask while its thread waits: that thread's place is as good.
            None if self.waiting.front().is_none_or(|first| *first == thread) => {
                self.owner = Some((thread, 1));
            }
            Some(_) | None => return false,
        }
        if waits {
            self.leave_queue(thread);
        }
        true
    }

    fn leave_queue(&mut self, thread: ThreadId) {
        if let Some(at) = self.waiting.iter().position(|one| *one == thread) {
            self.waiting.remove(at);
        }
    }

    /// Ends what this thread did last, of this kind.
    fn end(&mut self, thread: ThreadId, is_fork: bool) {
        let is_it = |part: &Part| part.thread == thread && part.is_fork == is_fork;
        let Some(at) = self.parts.iter().rposition(is_it) else { return };
        if self.parts.remove(at).is_in_turn {
            let owner = self.owner.map(|(thread, times)| (thread, times - 1));
            self.owner = owner.filter(|(_, times)| *times > 0);
        }
    }
}

impl Examining {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of this thread. Returns whether it came. `look` is called again and again.
    fn wait<'py>(
        &self,
        py: Python<'py>,
        look: impl Fn(Python<'py>) -> PyResult<()>,
    ) -> PyResult<(ThreadId, bool)> {
        let thread = thread::current().id();
        if self.turns().take(thread, false) {
            return Ok((thread, true));
        }
        if self.turns().parts.iter().any(|part| part.thread == thread && !part.is_fork) {
            // It has waited for long enough already.
            return Ok((thread, false));
        }
        self.turns().waiting.push_back(thread);
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        while began.elapsed() < self.limit {
            py.detach(|| thread::sleep(pause));
            pause = (pause * 2).min(LONGEST_PAUSE);
            if let Err(raised) = look(py) {
                self.turns().leave_queue(thread);
                return Err(raised);
            }
            if self.turns().take(thread, true) {
                return Ok((thread, true));
            }
        }
        self.turns().leave_queue(thread);
        Ok((thread, false))
    }
}

#[pymethods]
impl Examining {
    /// Creates it. Nobody waits for it longer than so many seconds.
    #[new]
    fn new(limit_s: f64) -> PyResult<Examining> {
        let limit = Duration::try_from_secs_f64(limit_s).map_err(|error| {
            PyValueError::new_err(format!("cannot wait for {limit_s} s: {error}"))
        })?;
        Ok(Examining { limit, turns: Mutex::default() })
    }

    /// Returns a context in which no other thread examines the heap.
    fn alone(slf: Py<Self>) -> Alone {
        Alone { examining: slf, thread: Mutex::default() }
    }

    /// The number of examinations under way, those within others among them.
    #[getter]
    fn count(&self) -> usize {
        self.turns().parts.iter().filter(|part| !part.is_fork).count()
    }

    /// Waits for other threads, so that a child inherits none of their references.
    fn before_fork(&self, py: Python<'_>) -> PyResult<()> {
        // A signal is handled after the fork: an exception would be lost here.
        let (thread, is_in_turn) = self.wait(py, |_| Ok(()))?;
        self.turns().parts.push(Part { thread, is_fork: true, is_in_turn });
        Ok(())
    }

    /// Lets other threads go on.
    fn after_fork(&self) {
        self.turns().end(thread::current().id(), true);
    }

    /// Lets the child ask. Other threads do not exist here.
    fn after_fork_in_child(&self) {
        self.after_fork();
        let (mut turns, thread) = (self.turns(), thread::current().id());
        turns.owner = turns.owner.filter(|(owner, _)| *owner == thread);
        turns.waiting.clear();
        turns.parts.retain(|part| part.thread == thread);
    }
}

/// A context in which no other thread examines the heap.
///
/// It ends with the object, too: from Python 3.14 on, Ctrl-C may be raised when a context was entered
/// and its block has not begun. Then nobody leaves it.
#[pyclass(frozen, module = "lowtide._native")]
pub struct Alone {
    examining: Py<Examining>,
    /// The thread whose examination is under way.
    thread: Mutex<Option<ThreadId>>,
}

#[pymethods]
impl Alone {
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let examining = self.examining.get();
        let (thread, is_in_turn) = examining.wait(py, Python::check_signals)?;
        examining.turns().parts.push(Part { thread, is_fork: false, is_in_turn });
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.leave();
    }
}

impl Alone {
    fn leave(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.examining.get().turns().end(thread, false);
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.leave();
    }
}
