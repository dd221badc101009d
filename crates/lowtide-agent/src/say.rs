//! Lines for the person who runs the program. The agent has no other way to speak.
#![allow(unsafe_code, reason = "takes a signal back that it caused")]

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::ptr;

use crate::threads::without_signals;

/// Writes a line to the program's standard error, as [`line()`] does.
macro_rules! say {
    ($($text:tt)*) => { crate::say::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Writes a line to the program's standard error, if somebody can read it. Unlike `eprintln!`, it does not panic where
/// nobody can; and a pipe without a reader, which the program may never write to, does not end the program.
pub(crate) fn line(text: Arguments<'_>) {
    let text = format!("lowtide: {text}\n");
    without_signals(|| {
        let was_pending = is_pipe_pending();
        let written = std::io::stderr().write_all(text.as_bytes());
        let is_broken = written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
        if is_broken && !was_pending && is_pipe_pending() {
            let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: makes an empty set of ours.
            unsafe { libc::sigemptyset(pipe.as_mut_ptr()) };
            // SAFETY: adds to the set that was made.
            unsafe { libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE) };
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: takes the signal of this thread that the write has left; does not wait.
            unsafe { libc::sigtimedwait(pipe.as_ptr(), ptr::null_mut(), &raw const now) };
        }
    });
}

fn is_pipe_pending() -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigpending(pending.as_mut_ptr()) };
    // SAFETY: reads the set that was filled; zeros are an empty one.
    unsafe { libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 }
}
