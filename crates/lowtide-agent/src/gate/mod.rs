//! The way into the driver.
//!
//! A touch enters, calls the driver and leaves. Each thread counts on a line of its own, so threads do
//! not share what they write. A sleep first writes that it closes the gate into one word, and then reads
//! all lines until no thread is inside: either it sees a thread's count, or the thread sees the word.
//! The lines also count the touches, for the idle policy.
//!
//! Other calls pass while the process sleeps. A suspended process answers few of them: some wait for ever,
//! some end the process. So they are counted too, and resume the process if it is suspended.
#![allow(unsafe_code, reason = "reads the thread's words")]

mod atomic;
mod protocol;
mod thread;

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use lowtide_device::process::Generation;
use lowtide_proto::Ask;
use rustix::thread::futex;

use self::protocol::{ASLEEP, CLOSING, OPEN, RETRY, SUSPENDED, TOUCH};
use self::thread::{Words, words};
use crate::driver::codes::UNKNOWN;
use crate::threads::{Pauses, uncancelled};

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
    enter_or(enter_slowly)
}

/// Enters as [`enter`] does, for a call that takes device memory; see [`waits_to_take`].
///
/// # Errors
/// As [`enter`].
#[inline]
pub(crate) fn enter_to_take() -> Result<Pass, i32> {
    enter_or(|line| counted(|| enter_slowly(line)))
}

#[inline]
fn enter_or(slowly: impl FnOnce(&AtomicU64) -> Result<(), i32>) -> Result<Pass, i32> {
    let at = words();
    // SAFETY: the words of this thread, which nobody else uses.
    let words = unsafe { &mut *at };
    if words.depth == 0 {
        let line = line_of(words);
        if !protocol::try_enter(&STATE, line, TOUCH) {
            slowly(line)?;
        }
    }
    words.depth += 1;
    Ok(Pass(at))
}

/// The threads that wait outside the gate in a call that takes device memory.
static WAITING_TO_TAKE: AtomicU32 = AtomicU32::new(0);

/// Counts the calling thread among those that wait to take device memory, for as long as it waits.
#[cold]
pub(crate) fn counted<T>(wait: impl FnOnce() -> T) -> T {
    WAITING_TO_TAKE.fetch_add(1, AcqRel);
    let done = wait();
    WAITING_TO_TAKE.fetch_sub(1, AcqRel);
    done
}

/// Returns whether a thread waits outside the gate in a call that takes device memory. It may hold a lock of a
/// framework's allocator.
pub(crate) fn waits_to_take() -> bool {
    WAITING_TO_TAKE.load(Acquire) > 0
}

/// Returns whether the calling thread is inside, so that a call which it makes now is inside another one.
pub(crate) fn is_inside() -> bool {
    // SAFETY: the words of this thread, which nobody else uses.
    unsafe { (*words()).depth > 0 }
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
            None => bring_back(Ask::Resume)?,
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
            // The thread that would open it is in the parent.
            CLOSING if is_inherited() => open(),
            CLOSING => {
                // Returns at once if the state is another by now.
                let _changed = futex::wait(&STATE, futex::Flags::PRIVATE, CLOSING, None);
            }
            _ => bring_back(Ask::Wake)?,
        }
    }
}

/// Brings the process back for a call that found the gate closed: [`Ask::Wake`] for a touch, [`Ask::Resume`] for
/// another call. An error is the driver's code for the caller; the next call tries again.
pub(crate) type Waker = fn(Ask) -> Result<(), i32>;

/// The waker, and the process that it wakes.
static WAKER: OnceLock<(Waker, Generation)> = OnceLock::new();

/// Gives the gate its waker, before anybody closes it.
pub(crate) fn set_waker(waker: Waker) {
    WAKER.get_or_init(|| (waker, Generation::current()));
}

/// Returns whether this process is a child of the one that was given the waker, by whatever call it was forked: its
/// threads are not there, and its driver does not work.
pub(crate) fn is_inherited() -> bool {
    WAKER.get().is_some_and(|(_, made_in)| !made_in.is_current())
}

#[cold]
fn bring_back(ask: Ask) -> Result<(), i32> {
    WAKER.get().map_or(Err(UNKNOWN), |(waker, _)| uncancelled(|| waker(ask)))
}

/// Closes the gate and waits until no thread is inside; opens it again and returns false if that
/// takes too long.
pub(crate) fn close(limit: Duration) -> bool {
    shut(CLOSING, limit, protocol::is_empty) || {
        open();
        false
    }
}

/// Keeps every call out of the driver of a sleeping process, and waits until none is inside; lets them in
/// again and returns false if that takes too long.
pub(crate) fn suspend(limit: Duration) -> bool {
    shut(SUSPENDED, limit, protocol::is_empty_of_quiet) || {
        fall_asleep();
        false
    }
}

/// Closes the gate to calls that come later, and waits for those that are inside; false if that takes too long.
fn shut(state: u32, limit: Duration, is_empty: fn(&AtomicU64) -> bool) -> bool {
    let lines = || LINES.iter().map(|line| &line.0);
    protocol::close(&STATE, state, lines());
    let pauses = Pauses::up_to(limit);
    while !lines().all(is_empty) {
        if !pauses.pause() {
            return false;
        }
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

/// Returns whether touches pass: no memory is on its way.
pub(crate) fn is_open() -> bool {
    STATE.load(Acquire) == OPEN
}

/// Returns whether the process is asleep, or suspended.
pub(crate) fn is_asleep() -> bool {
    matches!(STATE.load(Acquire), ASLEEP | SUSPENDED) && !is_inherited()
}

/// Returns whether the process is suspended, or about to be.
pub(crate) fn is_suspended() -> bool {
    STATE.load(Acquire) == SUSPENDED && !is_inherited()
}

/// Returns how many touches there were.
pub(crate) fn touches() -> u64 {
    LINES.iter().map(|line| line.0.load(Relaxed) >> 32).sum()
}

/// Writes the state, and wakes the threads that wait for that.
fn change(state: u32) {
    protocol::change(&STATE, state);
    let _woken = futex::wake(&STATE, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
}
