//! The state of the interpreter and of its threads: which of them holds an object that nothing else
//! leads to.
//!
//! Python cannot ask for the profile and trace functions of other threads, for the callbacks of
//! `sys.monitoring` and for audit hooks. They are pointers in the state. Its layout depends on the
//! version and on how it was built, so the pointer is searched for.

use std::collections::HashSet;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::rare::process_memory::{ProcessMemory, WORD};

/// How much of a thread's state is read, in words, and where its functions are. (Behind the state of
/// an old version is something else.)
const THREAD: usize = 64;
const FUNCTIONS: usize = 32;
/// Where it ends, at the latest, with the callbacks of `sys.monitoring`: a pointer farther on may be
/// anybody's.
const CALLBACKS: usize = 384 << 10;
/// More threads than any program has.
const THREADS_MOST: usize = 1 << 16;
/// More hooks than any program adds.
const HOOKS_MOST: usize = 1 << 10;
/// How much of a module's state is read, in words.
const STATE_MOST: usize = 64;
/// Where the state of a thread has the thread after it, the one before, and its interpreter.
const LINKS: [usize; 2] = [0, WORD];
const INTERPRETER: usize = 2;

/// Returns the address of this thread's interpreter.
pub(crate) fn interpreter(_: Python<'_>) -> usize {
    // SAFETY: this thread is attached, so it has an interpreter.
    unsafe { ffi::PyInterpreterState_Get() }.expose_provenance()
}

/// Returns what holds an object in the state of the interpreter: the number of a thread (one of
/// `threads`), `"interpreter"`, or `"hooks"` if it is in a list of the interpreter. `None` if nothing
/// does. `code` is the id of a function's code, or 0: in the interpreter's cache of functions, which
/// holds nothing, the code comes next.
#[pyfunction]
pub fn kept_by<'py>(
    object: &Bound<'py, PyAny>,
    threads: Vec<usize>,
    code: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let wanted = object.as_ptr().expose_provenance();
    let threads: HashSet<usize> = threads.into_iter().collect();
    let Some(memory) = ProcessMemory::open() else { return Ok(None) };
    // SAFETY: this thread is attached, so it has a state.
    let here = unsafe { ffi::PyThreadState_Get() }.expose_provenance();
    let home = interpreter(py);
    for link in LINKS {
        let mut state = here;
        for _ in 0..THREADS_MOST {
            let Some(words) = memory.words(state, THREAD) else { break };
            if words[INTERPRETER] != home {
                break;
            }
            if words[..FUNCTIONS].contains(&wanted) {
                let number = words.iter().find(|word| threads.contains(word));
                return number.map(|number| Ok(number.into_pyobject(py)?.into_any())).transpose();
            }
            state = words[link / WORD];
        }
    }
    let list = (&raw const ffi::PyList_Type).addr();
    // The interpreter hides the list of audit hooks from the collector, and nobody else refers to it.
    // All other lists are tracked, or have ended.
    let in_list = |at: usize| {
        let words = memory.words(at.checked_sub(2 * WORD)?, 6)?;
        let [tracked, _, references, class, size, items] = <[usize; 6]>::try_from(words).ok()?;
        let is_list = tracked == 0 && references == 1 && class == list;
        if !is_list || size == 0 || size > HOOKS_MOST {
            return None;
        }
        memory.words(items, size)?.contains(&wanted).then_some(())
    };
    let mut pointers = memory.pointers(home).peekable();
    while let Some((at, pointer)) = pointers.next() {
        let is_cached = pointers.peek().is_some_and(|next| *next == (at + WORD, code));
        if pointer == wanted && at < CALLBACKS && !is_cached {
            return Ok(Some("interpreter".into_pyobject(py)?.into_any()));
        }
        if in_list(pointer).is_some() {
            return Ok(Some("hooks".into_pyobject(py)?.into_any()));
        }
    }
    Ok(None)
}

/// Returns what the first words of a module's state point to, as the ids of objects; none where the
/// module has no state. Which hook of `readline` an object is, Python does not say.
#[pyfunction]
pub fn module_state(module: &Bound<'_, PyModule>) -> Vec<usize> {
    // SAFETY: it is a module.
    let definition = unsafe { ffi::PyModule_GetDef(module.as_ptr()) };
    // SAFETY: the definition of a module lives as long as the module, or it is null.
    let definition = unsafe { definition.as_ref() };
    let size = definition.map_or(0, |definition| definition.m_size.max(0).cast_unsigned());
    // SAFETY: it is a module.
    let state = unsafe { ffi::PyModule_GetState(module.as_ptr()) }.expose_provenance();
    let memory = ProcessMemory::open().filter(|_| state != 0);
    memory.and_then(|memory| memory.words(state, (size / WORD).min(STATE_MOST))).unwrap_or_default()
}

/// Returns the dict in which this thread's state has objects of its own, or `None`. Up to Python 3.12
/// the marks of thread-locals are in it.
#[pyfunction]
pub fn thread_state(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: this thread is attached.
    let dict = unsafe { ffi::PyThreadState_GetDict() };
    // SAFETY: the dict is borrowed from the thread's state, or it is null.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, dict) }
}
