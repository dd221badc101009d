//! What must not happen during a capture.
//!
//! A call that is unsafe during a capture answers 900 *and* invalidates the capture, even from another
//! thread: the trap that anything which sleeps or trims in the background has to avoid. [`UNSAFE`] is
//! the H200's list. A capture is of one stream: recording or awaiting an event in it, which would
//! fork it, is refused.

use std::cell::Cell;
use std::thread;

use super::code::{CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED};
use super::objects::{Capture, ContextId, Stream, Work};
use super::pointers::CallResult;
use super::tables::{self, Tables};

/// Calls that are unsafe during a capture.
const UNSAFE: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuEventQuery",
    "cuEventSynchronize",
];

pub(super) const GLOBAL: i32 = 0;
pub(super) const THREAD_LOCAL: i32 = 1;
pub(super) const RELAXED: i32 = 2;

thread_local! {
    /// The mode that this thread set by `cuThreadExchangeStreamCaptureMode`.
    static THREAD_MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

impl Capture {
    /// Adds work to the graph-to-be.
    pub(super) fn record(&mut self, work: Work) -> CallResult {
        if self.is_invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        self.work.push(work);
        Ok(())
    }

    fn forbids_unsafe_calls(&self) -> bool {
        let is_ours = self.thread == thread::current().id();
        match (self.mode, THREAD_MODE.get()) {
            (RELAXED, _) | (_, RELAXED) => false,
            (GLOBAL, GLOBAL) => true,
            _ => is_ours,
        }
    }
}

/// Invalidates the captures that `hit` picks; an error if there was one.
fn invalidate(
    state: &mut Tables,
    error: i32,
    hit: impl Fn(&Stream, &Capture) -> bool,
) -> CallResult {
    let mut result = Ok(());
    for stream in state.streams.values_mut() {
        let is_hit = stream.capture.as_ref().is_some_and(|capture| hit(stream, capture));
        if let (true, Some(capture)) = (is_hit, &mut stream.capture) {
            capture.is_invalid = true;
            result = Err(error);
        }
    }
    result
}

/// Sets this thread's capture mode and returns the one it had.
pub(super) fn exchange_mode(mode: i32) -> i32 {
    THREAD_MODE.replace(mode)
}

/// Applies the rule for unsafe calls, by name.
pub(super) fn on_call(name: &str) -> CallResult {
    if !UNSAFE.contains(&name) {
        return Ok(());
    }
    invalidate(&mut tables::lock(), CAPTURE_UNSUPPORTED, |_, capture| {
        capture.forbids_unsafe_calls()
    })
}

/// Applies the rule for calls that would wait for, or look at, a capturing stream itself.
pub(super) fn forbid_own(state: &mut Tables, context: ContextId, handle: u64) -> CallResult {
    match &mut state.stream(context, handle)?.capture {
        Some(capture) => {
            capture.is_invalid = true;
            Err(CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Applies the rule for `cuCtxSynchronize`, which waits for every stream.
pub(super) fn forbid_any(state: &mut Tables, context: ContextId) -> CallResult {
    invalidate(state, CAPTURE_UNSUPPORTED, |stream, _| stream.context == context)
}

/// Applies the rule for the legacy stream, which waits for every blocking stream.
pub(super) fn forbid_implicit(state: &mut Tables, context: ContextId) -> CallResult {
    invalidate(state, CAPTURE_IMPLICIT, |stream, _| stream.context == context && stream.is_blocking)
}
