//! The calls that `atexit` makes at the end of the program.
//!
//! No function of Python lists them. `atexit.unregister` compares them all, which runs `__eq__` of the
//! program's objects, and removes those that say that they are equal. So they are read from the state
//! of the interpreter: an array of calls up to Python 3.13, a list of tuples from 3.14 on. Where in the
//! state that is depends on the version and on how it was built. It is searched for once, by a call
//! that this package has registered itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::rare::interpreter_state::interpreter;
use crate::rare::process_memory::ProcessMemory;

/// More calls than any program registers.
const MOST: usize = 1 << 20;

/// Where in the state the calls were found; 0 if they have not been looked for.
static FOUND_AT: AtomicUsize = AtomicUsize::new(0);
/// That the calls were looked for and are not there.
const NOWHERE: usize = usize::MAX;

/// A call, by the addresses of its objects; the last is 0 if it has no arguments by name.
type Call = [usize; 3];

/// The calls as Python sees them, and the list that has them.
type Calls<'py> = (Vec<Bound<'py, PyTuple>>, Option<Bound<'py, PyAny>>);

/// Returns the calls that are made at exit, each as its function, its arguments and its arguments by
/// name; and the list that has them, if this interpreter has one. `None` if they cannot be read.
///
/// `known` is a function that was registered, `count` the number of calls.
#[pyfunction]
pub fn exit_calls<'py>(known: &Bound<'py, PyAny>, count: usize) -> PyResult<Option<Calls<'py>>> {
    let py = known.py();
    let Some(state) = InterpreterState::open(known, count) else { return Ok(None) };
    let Some(at) = state.find() else { return Ok(None) };
    if state.has_list {
        let Some(list) = state.list(at) else { return Ok(None) };
        // SAFETY: the interpreter's own list, which has the call of this package.
        let list = unsafe { Bound::from_borrowed_ptr(py, object(list)) };
        let calls = list.cast::<PyList>()?.iter().map(|call| Ok(call.cast_into::<PyTuple>()?));
        let calls = calls.collect::<PyResult<_>>()?;
        return Ok(Some((calls, Some(list))));
    }
    let calls = state.array(at).unwrap_or_default().into_iter();
    // SAFETY: parts of calls of the interpreter's own array: alive, or null.
    let part = |at: usize| unsafe { Bound::from_borrowed_ptr_or_opt(py, object(at)) };
    // All are held before the first tuple is made: that may run the collector, and so any code.
    let calls: Vec<_> = calls.map(|call| call.map(part)).collect();
    let calls = calls.into_iter().map(|call| PyTuple::new(py, call)).collect::<PyResult<_>>()?;
    Ok(Some((calls, None)))
}

fn object(address: usize) -> *mut PyObject {
    std::ptr::with_exposed_provenance_mut(address)
}

/// The state of this thread's interpreter.
struct InterpreterState {
    memory: ProcessMemory,
    address: usize,
    known: usize,
    count: usize,
    has_list: bool,
    /// Where a tuple has its first element.
    first: usize,
}

impl InterpreterState {
    fn open(known: &Bound<'_, PyAny>, count: usize) -> Option<InterpreterState> {
        if count == 0 || count > MOST {
            return None;
        }
        let py = known.py();
        let first = py.get_type::<PyTuple>().getattr("__basicsize__").ok()?.extract().ok()?;
        Some(InterpreterState {
            memory: ProcessMemory::open()?,
            address: interpreter(py),
            known: known.as_ptr().expose_provenance(),
            count,
            has_list: py.version_info() >= (3, 14),
            first,
        })
    }

    /// Returns where in the state the calls are.
    fn find(&self) -> Option<usize> {
        let known = FOUND_AT.load(Ordering::Relaxed);
        if known == NOWHERE || (known != 0 && self.is_at(known)) {
            return (known != NOWHERE).then_some(known);
        }
        let found = self.search();
        FOUND_AT.store(found.unwrap_or(NOWHERE), Ordering::Relaxed);
        found
    }

    fn search(&self) -> Option<usize> {
        let mut pointers = self.memory.pointers(self.address);
        pointers.find_map(|(at, _)| (at > 0 && self.is_at(at)).then_some(at))
    }

    fn is_at(&self, at: usize) -> bool {
        if self.has_list { self.list(at).is_some() } else { self.array(at).is_some() }
    }

    /// Returns the calls of the array at an offset, if it is the one: the pointer to it, how many there
    /// are, and for how many there is room.
    fn array(&self, at: usize) -> Option<Vec<Call>> {
        let words = self.memory.words(self.address + at, 2)?;
        let (count, room) = (words[1] & 0xffff_ffff, words[1] >> 32);
        if count != self.count || room < count || room > MOST {
            return None;
        }
        let calls = self.memory.words(words[0], count)?.into_iter().filter(|call| *call != 0);
        let calls = calls.map(|call| <Call>::try_from(self.memory.words(call, 3)?).ok());
        let calls: Vec<Call> = calls.collect::<Option<_>>()?;
        calls.iter().any(|call| call[0] == self.known).then_some(calls)
    }

    /// Returns the address of the list at an offset, if it is the one.
    fn list(&self, at: usize) -> Option<usize> {
        let list = self.memory.words(self.address + at, 1)?[0];
        let [_, class, size, items] = <[usize; 4]>::try_from(self.memory.words(list, 4)?).ok()?;
        if class != (&raw const ffi::PyList_Type).addr() || size != self.count {
            return None;
        }
        let calls = self.memory.words(items, size)?;
        let function = |call: usize| {
            let [_, class, size] = <[usize; 3]>::try_from(self.memory.words(call, 3)?).ok()?;
            let is_call = class == (&raw const ffi::PyTuple_Type).addr() && size == 3;
            Some(self.memory.words(call + self.first, 1).filter(|_| is_call)?[0])
        };
        let functions: Vec<usize> = calls.into_iter().map(function).collect::<Option<_>>()?;
        functions.contains(&self.known).then_some(list)
    }
}
