//! The way into the driver.
//!
//! A touch enters, calls the driver and leaves. Each thread counts on a line of its own, so threads do
//! not share what they write. Who wants to put the process to sleep says so in one word, and then reads
//! all lines until nobody is inside: either it sees a thread's count, or the thread sees the word.
//! The lines also count the touches, for the idle policy.
//!
//! Other calls pass while the process sleeps. A suspended process answers few of them: some wait for ever,
//! some end the process. So they are counted too, and resume the process if it is suspended.
#![allow(unsafe_code, reason = "reads the thread's words, and waits in the kernel")]

mod protocol;
mod thread;

/// The atomics of the protocol; its model brings others.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use self::protocol::{ASLEEP, CLOSING, OPEN, RETRY, SUSPENDED, TOUCH};
use self::thread::{Words, words};
use crate::sleep::agent;

static STATE: AtomicU32 = AtomicU32::new(OPEN);

/// More threads than this share lines, which is slower and just as right.
const LINES_MOST: u32 = 512;
static LINES: [Line; LINES_MOST as usize] =
    [const { Line(AtomicU64::new(0)) }; LINES_MOST as usize];
static NEXT_LINE: AtomicU32 = AtomicU32::new(0);

/// The count of a thread, alone in its pair of cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// A call that is under way.
pub(crate) struct Pass(*mut Words);

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the words of this thread; a pass stays on its thread.
        let words = unsafe { &mut *self.0 };
        words.depth -= 1;
        if words.depth == 0 {
            protocol::leave(line_of(words));
        }
    }
}

/// Enters for one touch; waits while the process falls asleep, and wakes it if it sleeps. Never waits
/// inside another touch of the same thread.
///
/// # Errors
/// The driver's code for the caller where the process could not be woken.
#[inline]
pub(crate) fn enter() -> Result<Pass, i32> {
    let at = words();
    // SAFETY: the words of this thread, which nobody else uses.
    let words = unsafe { &mut *at };
    if words.depth == 0 {
        let line = line_of(words);
        if !protocol::try_enter(&STATE, line, TOUCH) {
            enter_slowly(line)?;
        }
    }
    words.depth += 1;
    Ok(Pass(at))
}

/// A call under way that is no touch.
pub(crate) struct QuietPass(&'static AtomicU64);

impl Drop for QuietPass {
    #[inline]
    fn drop(&mut self) {
        protocol::leave_quietly(self.0);
    }
}

/// Enters for one call that is no touch but waits, or ends the process, while it is suspended. Resumes the
/// process if it is; it may sleep on.
///
/// # Errors
/// The driver's code for the caller where the process could not be resumed.
#[inline]
pub(crate) fn enter_quietly() -> Result<QuietPass, i32> {
    loop {
        match try_enter_quietly() {
            Some(pass) => return Ok(pass),
            None => agent::resume_for_call()?,
        }
    }
}

/// Enters for one call that is no touch; `None` if the process is suspended.
#[inline]
pub(crate) fn try_enter_quietly() -> Option<QuietPass> {
    // SAFETY: the words of this thread, which nobody else uses.
    let line = line_of(unsafe { &mut *words() });
    protocol::try_enter_quietly(&STATE, line).then_some(QuietPass(line))
}

#[inline]
fn line_of(words: &mut Words) -> &'static AtomicU64 {
    if words.line == 0 {
        words.line = NEXT_LINE.fetch_add(1, Relaxed) % LINES_MOST + 1;
    }
    &LINES[(words.line - 1) as usize].0
}

#[cold]
fn enter_slowly(line: &AtomicU64) -> Result<(), i32> {
    loop {
        match STATE.load(Acquire) {
            OPEN => {
                if protocol::try_enter(&STATE, line, RETRY) {
                    return Ok(());
                }
            }
            CLOSING => wait(CLOSING),
            _ => agent::wake_for_touch()?,
        }
    }
}

/// Closes the gate and waits until no thread is inside; opens it again and returns false if that
/// takes too long.
pub(crate) fn close(limit: Duration) -> bool {
    protocol::close(&STATE, LINES.iter().map(|line| &line.0));
    let is_closed = becomes(limit, || protocol::is_empty(LINES.iter().map(|line| &line.0)));
    if !is_closed {
        open();
    }
    is_closed
}

/// Waits until something is so; false if that takes too long.
fn becomes(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Says that the process is asleep. The gate is closed.
pub(crate) fn fall_asleep() {
    change(ASLEEP);
}

/// Opens the gate.
pub(crate) fn open() {
    change(OPEN);
}

/// Keeps every call out of the driver of a sleeping process, and waits until none is inside; lets them in
/// again and returns false if that takes too long.
pub(crate) fn suspend(limit: Duration) -> bool {
    protocol::suspend(&STATE, LINES.iter().map(|line| &line.0));
    let is_closed = becomes(limit, || protocol::is_quite_empty(LINES.iter().map(|line| &line.0)));
    if !is_closed {
        fall_asleep();
    }
    is_closed
}

/// Returns whether the process is asleep, or suspended.
pub(crate) fn is_asleep() -> bool {
    matches!(STATE.load(Acquire), ASLEEP | SUSPENDED)
}

/// Returns whether the process is suspended, or about to be.
pub(crate) fn is_suspended() -> bool {
    STATE.load(Acquire) == SUSPENDED
}

/// Returns how many touches there were.
pub(crate) fn touches() -> u64 {
    LINES.iter().map(|line| line.0.load(Relaxed) >> 32).sum()
}

fn change(state: u32) {
    protocol::change(&STATE, state);
    let everybody = i32::MAX;
    // SAFETY: a static word; wakes who waits for it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(&STATE),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            everybody,
        );
    }
}

fn wait(while_it_is: u32) {
    let no_limit = ptr::null::<libc::timespec>();
    // SAFETY: a static word; returns at once if it has another value.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(&STATE),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            while_it_is,
            no_limit,
        );
    }
}
