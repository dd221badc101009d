//! What touches and a closing sleep do with the gate's words, and in which order. `tests/agent/model.rs` tries
//! every interleaving of it.
//!
//! A touch adds to its line and then reads the state. A closing writes the state and then adds nothing to
//! every line, once. Both additions change the same word, so one comes first: either the touch's, and the closing
//! finds it inside; or the other, and then the touch sees the state that was written before it.

use super::atomic::Ordering::{AcqRel, Acquire, Release};
use super::atomic::{AtomicU32, AtomicU64};

/// Touches enter.
pub(super) const OPEN: u32 = 0;
/// Somebody wants to put the process to sleep: touches wait.
pub(super) const CLOSING: u32 = 1;
/// The process is asleep: a touch wakes it.
pub(super) const ASLEEP: u32 = 2;
/// The process is suspended, or about to be: nobody may call the driver, except for what does not wait there.
pub(super) const SUSPENDED: u32 = 3;

/// The upper half of a line counts the touches, the lower half the threads that are inside: with a touch in
/// its lower part, with another call in its upper part.
pub(super) const TOUCH: u64 = 1 << 32 | 1;
/// Another attempt of a touch that was counted.
pub(super) const RETRY: u64 = 1;
const INSIDE: u64 = u16::MAX as u64;
const QUIET: u64 = 1 << 16;
const INSIDE_QUIETLY: u64 = INSIDE << 16;

/// Enters by a line, with [`TOUCH`] or [`RETRY`]; false if the gate is not open.
#[inline]
pub(super) fn try_enter(state: &AtomicU32, line: &AtomicU64, as_what: u64) -> bool {
    line.fetch_add(as_what, AcqRel);
    if state.load(Acquire) == OPEN {
        return true;
    }
    leave(line);
    false
}

/// Leaves.
#[inline]
pub(super) fn leave(line: &AtomicU64) {
    line.fetch_sub(1, Release);
}

/// Enters by a line for a call that is no touch; false if the process is suspended.
#[inline]
pub(super) fn try_enter_quietly(state: &AtomicU32, line: &AtomicU64) -> bool {
    line.fetch_add(QUIET, AcqRel);
    if state.load(Acquire) != SUSPENDED {
        return true;
    }
    leave_quietly(line);
    false
}

/// Leaves after a call that is no touch.
#[inline]
pub(super) fn leave_quietly(line: &AtomicU64) {
    line.fetch_sub(QUIET, Release);
}

/// Closes the gate: [`CLOSING`] to touches that come later, [`SUSPENDED`] to every call. Those before may still be
/// inside.
pub(super) fn close<'a>(state: &AtomicU32, to: u32, lines: impl Iterator<Item = &'a AtomicU64>) {
    change(state, to);
    for line in lines {
        line.fetch_add(0, AcqRel);
    }
}

/// Returns whether nobody is inside by this line with a touch. The gate is closed.
pub(super) fn is_empty(line: &AtomicU64) -> bool {
    line.load(Acquire) & INSIDE == 0
}

/// Returns whether nobody is inside by this line with another call. The process is suspended.
pub(super) fn is_empty_of_quiet(line: &AtomicU64) -> bool {
    line.load(Acquire) & INSIDE_QUIETLY == 0
}

/// Writes the state.
pub(super) fn change(state: &AtomicU32, to: u32) {
    state.store(to, Release);
}
