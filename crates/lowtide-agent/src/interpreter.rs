//! The Python interpreter of this process, if it has one: its functions, and threads that use it.
#![allow(unsafe_code, reason = "calls the interpreter")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

use crate::driver::library;
use crate::threads;

/// The interpreter's number for a text of statements.
const STATEMENTS: c_int = 257;

type Ask = extern "C" fn() -> c_int;
/// Takes a text, its kind, global and local names, and flags.
type Run = extern "C-unwind" fn(
    *const c_char,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> *mut c_void;

/// The function of a thread.
pub(crate) type Thread = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// The functions of the interpreter that is in this process.
pub(crate) struct Interpreter {
    is_initialized: Ask,
    is_finalizing: Ask,
    ensure: extern "C-unwind" fn() -> c_int,
    release: extern "C-unwind" fn(c_int),
    new_dict: extern "C-unwind" fn() -> *mut c_void,
    run: Run,
    drop_reference: extern "C-unwind" fn(*mut c_void),
    clear_error: extern "C-unwind" fn(),
}

/// Starts a thread that may use the interpreter. It is not one of Rust's: an interpreter that ends may end it where it
/// waits for the lock, which unwinds frames that have nothing to drop. Returns whether it was started, and then owns the
/// argument.
pub(crate) fn start(run: Thread, argument: *mut c_void) -> bool {
    let mut thread = 0;
    let started = threads::without_signals(|| {
        // SAFETY: the type of a thread's function; how it unwinds makes no difference to its caller.
        let run = unsafe { transmute::<Thread, extern "C" fn(*mut c_void) -> *mut c_void>(run) };
        // SAFETY: starts a thread with default attributes; it owns the argument.
        unsafe { libc::pthread_create(&raw mut thread, ptr::null(), run, argument) }
    });
    if started == 0 {
        // SAFETY: the thread that was started; nobody joins it.
        unsafe { libc::pthread_detach(thread) };
    }
    started == 0
}

impl Interpreter {
    /// Takes the interpreter's lock, which may take for ever, does something, and gives the lock back.
    pub(crate) fn with_lock(&self, work: impl FnOnce()) {
        let state = (self.ensure)();
        work();
        (self.release)(state);
    }

    /// Executes a text. The caller has the lock. An error of it is nobody's.
    pub(crate) fn execute(&self, text: &CStr, names: *mut c_void) {
        if !names.is_null() {
            let result = (self.run)(text.as_ptr(), STATEMENTS, names, names, ptr::null_mut());
            if !result.is_null() {
                (self.drop_reference)(result);
            }
        }
        (self.clear_error)();
    }

    /// Makes names for a text; null if there is no memory for them. The caller has the lock.
    pub(crate) fn new_names(&self) -> *mut c_void {
        (self.new_dict)()
    }

    /// Drops names. The caller has the lock.
    pub(crate) fn drop_names(&self, names: *mut c_void) {
        if !names.is_null() {
            (self.drop_reference)(names);
        }
    }
}

/// Looks a function of the interpreter up.
macro_rules! function {
    ($name:literal: $kind:ty) => {{
        let found = library::look_up_anywhere($name);
        // SAFETY: a function of this name has this type in every Python 3.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, $kind>(found) })
    }};
}

/// Finds the interpreter, unless it has not begun or is at its end; `None` in other programs. The caller needs the
/// loader's lock, which a thread at the gate may have.
pub(crate) fn find() -> Option<Interpreter> {
    // Public since Python 3.13.
    let is_finalizing = function!(c"Py_IsFinalizing": Ask);
    let found = Interpreter {
        is_initialized: function!(c"Py_IsInitialized": Ask)?,
        is_finalizing: is_finalizing.or_else(|| function!(c"_Py_IsFinalizing": Ask))?,
        ensure: function!(c"PyGILState_Ensure": extern "C-unwind" fn() -> c_int)?,
        release: function!(c"PyGILState_Release": extern "C-unwind" fn(c_int))?,
        new_dict: function!(c"PyDict_New": extern "C-unwind" fn() -> *mut c_void)?,
        run: function!(c"PyRun_StringFlags": Run)?,
        drop_reference: function!(c"Py_DecRef": extern "C-unwind" fn(*mut c_void))?,
        clear_error: function!(c"PyErr_Clear": extern "C-unwind" fn())?,
    };
    ((found.is_initialized)() != 0 && (found.is_finalizing)() == 0).then_some(found)
}
