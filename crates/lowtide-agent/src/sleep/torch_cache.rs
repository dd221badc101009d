//! Asks torch for its cache before a sleep, where the program is Python and uses torch.
//!
//! What torch keeps and does not use would be copied to the host and back. Only torch can tell, and only a
//! thread with the interpreter's lock can ask. So a thread of its own asks; if it is not back in time the
//! sleep goes on without it, and what it finds later it leaves alone.
#![allow(unsafe_code, reason = "calls the interpreter")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::driver::library;
use crate::threads;

/// The time that torch has.
const LIMIT: Duration = Duration::from_millis(100);
/// The pause between two looks at the thread.
const PAUSE: Duration = Duration::from_micros(200);

/// What is executed. The names stay from one time to the next.
///
/// An interpreter that ends kills threads where they ask for its lock; in the middle of torch's code that
/// ends the process with an error. So the end waits for a call that is under way, and after it has begun
/// there is none. It begins with the end of the main thread. A forked child has no such call, and maybe the lock of one.
const CODE: &CStr = c"
import _thread, atexit, os, sys
if 'at_work' not in globals():
    at_work = _thread.allocate_lock()
    def end(of=os.getpid()):
        if os.getpid() == of:
            at_work.acquire(timeout=10)
    atexit.register(end)
threading, torch = sys.modules.get('threading'), sys.modules.get('torch')
cuda = getattr(torch, 'cuda', None)
goes_on = threading is None or threading.main_thread().is_alive()
if goes_on and cuda is not None and cuda.is_initialized() and at_work.acquire(False):
    try:
        cuda.empty_cache()
    finally:
        at_work.release()
";
/// The interpreter's number for a text of statements.
const STATEMENTS: c_int = 257;

/// The thread waits for the interpreter's lock.
const WAITING: u32 = 0;
/// It has the lock and asks.
const ASKING: u32 = 1;
/// It has asked.
const DONE: u32 = 2;
/// Nobody waits for it any more.
const ABANDONED: u32 = 3;

type Ask = extern "C" fn() -> c_int;
/// Takes a text, its kind, global and local names, and flags.
type Run = extern "C-unwind" fn(
    *const c_char,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> *mut c_void;

/// The functions of the interpreter that is in this process.
#[derive(Clone, Copy)]
struct Interpreter {
    is_initialized: Ask,
    is_finalizing: Ask,
    ensure: extern "C-unwind" fn() -> c_int,
    release: extern "C-unwind" fn(c_int),
    new_dict: extern "C-unwind" fn() -> *mut c_void,
    run: Run,
    drop_reference: extern "C-unwind" fn(*mut c_void),
    clear_error: extern "C-unwind" fn(),
}

/// Asks torch to give its cache back, for as long as [`LIMIT`]. Returns whether it was asked.
pub(crate) fn trim() -> bool {
    let Some(interpreter) = find() else { return false };
    if (interpreter.is_initialized)() == 0 || (interpreter.is_finalizing)() != 0 {
        return false;
    }
    let errand = Arc::new(Errand { interpreter, stage: AtomicU32::new(WAITING) });
    if !start(&errand) {
        return false;
    }
    let began = Instant::now();
    while errand.stage.load(SeqCst) != DONE {
        if began.elapsed() > LIMIT {
            // If it asks already, it goes on; the sleep then finds the process busy, or does not.
            let _abandoned = errand.stage.compare_exchange(WAITING, ABANDONED, SeqCst, SeqCst);
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

struct Errand {
    interpreter: Interpreter,
    stage: AtomicU32,
}

/// Starts the thread. It is not one of Rust's: an interpreter that ends may end it where it waits for the
/// lock, which unwinds frames that have nothing to drop.
fn start(errand: &Arc<Errand>) -> bool {
    let argument = Arc::into_raw(Arc::clone(errand));
    let mut thread = 0;
    let started = threads::without_signals(|| {
        // SAFETY: the type of a thread's function; how it unwinds makes no difference to its caller.
        let run: extern "C" fn(*mut c_void) -> *mut c_void =
            unsafe { transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, _>(run) };
        // SAFETY: starts a thread with default attributes; it owns the argument.
        unsafe {
            libc::pthread_create(&raw mut thread, ptr::null(), run, argument.cast_mut().cast())
        }
    });
    if started != 0 {
        // SAFETY: no thread owns it.
        drop(unsafe { Arc::from_raw(argument) });
        return false;
    }
    // SAFETY: the thread that was started; nobody joins it.
    unsafe { libc::pthread_detach(thread) };
    true
}

extern "C-unwind" fn run(errand: *mut c_void) -> *mut c_void {
    // SAFETY: the reference that `start` gave away, dropped at the end.
    let Errand { interpreter, stage } = unsafe { &*errand.cast::<Errand>() };
    let state = (interpreter.ensure)();
    if stage.compare_exchange(WAITING, ASKING, SeqCst, SeqCst).is_ok() {
        let names = names(interpreter);
        if !names.is_null() {
            let result =
                (interpreter.run)(CODE.as_ptr(), STATEMENTS, names, names, ptr::null_mut());
            if !result.is_null() {
                (interpreter.drop_reference)(result);
            }
        }
        // A torch that refuses is no reason to stay awake.
        (interpreter.clear_error)();
        stage.store(DONE, SeqCst);
    }
    (interpreter.release)(state);
    // SAFETY: as above.
    drop(unsafe { Arc::from_raw(errand.cast_const().cast::<Errand>()) });
    ptr::null_mut()
}

/// Returns the names of the code, which nobody drops; null if there is no memory for them. The caller has the
/// interpreter's lock.
fn names(interpreter: &Interpreter) -> *mut c_void {
    static NAMES: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let names = NAMES.load(SeqCst);
    if !names.is_null() {
        return names;
    }
    let names = (interpreter.new_dict)();
    NAMES.store(names, SeqCst);
    names
}

/// Looks a function of the interpreter up.
macro_rules! function {
    ($name:literal: $kind:ty) => {{
        let found = library::look_up_anywhere($name);
        // SAFETY: a function of this name has this type in every Python 3.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, $kind>(found) })
    }};
}

/// Finds the interpreter; `None` in other programs.
fn find() -> Option<Interpreter> {
    // Public since Python 3.13.
    let is_finalizing = function!(c"Py_IsFinalizing": Ask);
    Some(Interpreter {
        is_initialized: function!(c"Py_IsInitialized": Ask)?,
        is_finalizing: is_finalizing.or_else(|| function!(c"_Py_IsFinalizing": Ask))?,
        ensure: function!(c"PyGILState_Ensure": extern "C-unwind" fn() -> c_int)?,
        release: function!(c"PyGILState_Release": extern "C-unwind" fn(c_int))?,
        new_dict: function!(c"PyDict_New": extern "C-unwind" fn() -> *mut c_void)?,
        run: function!(c"PyRun_StringFlags": Run)?,
        drop_reference: function!(c"Py_DecRef": extern "C-unwind" fn(*mut c_void))?,
        clear_error: function!(c"PyErr_Clear": extern "C-unwind" fn())?,
    })
}
