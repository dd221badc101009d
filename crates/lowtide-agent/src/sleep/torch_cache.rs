//! Asks torch for its cache before a sleep, where the program is Python and uses torch.
//!
//! What torch keeps and does not use would be copied to the host and back. Only torch can tell, and only a
//! thread with the interpreter's lock can ask. So a thread of its own asks; if it has no lock in time the
//! sleep goes on without it, and what it finds later it leaves alone.
#![allow(unsafe_code, reason = "calls the interpreter")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::interpreter::{self, Interpreter};

/// The time in which the interpreter's lock has to be had.
const LOCK_LIMIT: Duration = Duration::from_millis(100);
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

/// The thread waits for the interpreter's lock.
const WAITING: u32 = 0;
/// It has the lock and asks.
const ASKING: u32 = 1;
/// It has asked.
const DONE: u32 = 2;
/// Nobody waits for it any more.
const ABANDONED: u32 = 3;

/// What came of asking torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trim {
    /// Torch has given its cache back, or there is none.
    Done,
    /// Nobody asks: the interpreter's lock could not be had.
    NotAsked,
    /// Torch was asked and has not answered. It may wait for a lock of its own.
    UnderWay,
}

/// Asks torch to give its cache back, and waits for that up to a limit, or until the interpreter's lock has not been
/// had in [`LOCK_LIMIT`]. The interpreter is found by the thread that asks: who finds it needs the loader's lock, which
/// a thread at the gate may have.
pub(crate) fn trim(limit: Duration) -> Trim {
    let stage = Arc::new(AtomicU32::new(WAITING));
    let argument = Arc::into_raw(Arc::clone(&stage));
    if !interpreter::start(run, argument.cast_mut().cast()) {
        // SAFETY: no thread owns it.
        drop(unsafe { Arc::from_raw(argument) });
        return Trim::NotAsked;
    }
    let began = Instant::now();
    loop {
        let passed = began.elapsed();
        let abandon = || stage.compare_exchange(WAITING, ABANDONED, SeqCst, SeqCst);
        match stage.load(SeqCst) {
            DONE => return Trim::Done,
            WAITING if passed > LOCK_LIMIT && abandon().is_ok() => return Trim::NotAsked,
            ASKING if passed > limit => return Trim::UnderWay,
            _ => std::thread::sleep(PAUSE),
        }
    }
}

extern "C-unwind" fn run(stage: *mut c_void) -> *mut c_void {
    let at = stage.cast_const().cast::<AtomicU32>();
    // SAFETY: the reference that `trim` gave away, dropped at the end.
    let stage = unsafe { &*at };
    match interpreter::find() {
        Some(interpreter) => ask(&interpreter, stage),
        None => stage.store(DONE, SeqCst),
    }
    // SAFETY: as above.
    drop(unsafe { Arc::from_raw(at) });
    ptr::null_mut()
}

/// Asks once it has the interpreter's lock, unless nobody waits for that any more.
extern "C-unwind" fn ask(interpreter: &Interpreter, stage: &AtomicU32) {
    interpreter.with_lock(|| {
        if stage.compare_exchange(WAITING, ASKING, SeqCst, SeqCst).is_ok() {
            // A torch that refuses is no reason to stay awake.
            interpreter.execute(CODE, names(interpreter));
            stage.store(DONE, SeqCst);
        }
    });
}

/// Returns the names of the code, which nobody drops; null if there is no memory for them. The caller has the
/// interpreter's lock.
fn names(interpreter: &Interpreter) -> *mut c_void {
    static NAMES: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let names = NAMES.load(SeqCst);
    if !names.is_null() {
        return names;
    }
    let names = interpreter.new_names();
    NAMES.store(names, SeqCst);
    names
}
