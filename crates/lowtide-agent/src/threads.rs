//! Threads of the agent. They block all signals, so that no handler of the program runs on them; the threads that they
//! start for copies inherit that.
#![allow(unsafe_code, reason = "blocks signals, and puts cancellation off")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use std::{ptr, thread};

/// Starts a thread that no signal of the program interrupts.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    without_signals(|| builder.spawn(work)).map(drop)
}

/// Blocks all signals while something starts a thread, which inherits that.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: reads the set that was filled, and writes the one that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = start();
    // SAFETY: puts back what was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The value of `PTHREAD_CANCEL_DISABLE` in the C library's header.
const NOT_CANCELLED: c_int = 1;

/// Puts a cancellation of the calling thread off until code of ours is done: it would end the process where it unwinds
/// that code.
pub(crate) fn uncancelled<T>(run: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: writes one int.
    unsafe { pthread_setcancelstate(NOT_CANCELLED, &raw mut before) };
    let done = run();
    // SAFETY: puts back what was in force.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    done
}

/// The time for which a thread looks again at once; then it sleeps between two looks.
const EAGER: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_micros(200);

/// The pauses of a thread that looks again and again whether something has happened, up to a limit.
pub(crate) struct Pauses {
    began: Instant,
    limit: Duration,
}

impl Pauses {
    pub(crate) fn up_to(limit: Duration) -> Pauses {
        Pauses { began: Instant::now(), limit }
    }

    /// Makes a pause; returns false, without one, after the limit.
    pub(crate) fn pause(&self) -> bool {
        match self.began.elapsed() {
            passed if passed > self.limit => return false,
            passed if passed > EAGER => thread::sleep(PAUSE),
            _ => thread::yield_now(),
        }
        true
    }
}
