//! Whether work is on the device.
//!
//! Asked only while the gate is closed and no capture is open: the question ends a capture.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::driver::calls;
use crate::driver::codes::{NOT_FOUND, NOT_READY};
use crate::driver::entries::{ENTRIES, row};
use crate::threads::Pauses;

/// The flag of an event without a time stamp.
const NO_TIMING: usize = 2;

/// The event with which a context is asked. It is made at the first question and goes with its context.
#[derive(Default)]
pub(crate) struct Question {
    /// Zero before it is made. Only the worker asks.
    event: AtomicUsize,
}

/// The reason why nobody can say that a context is idle.
pub(crate) struct Busy {
    /// The function that failed, and its code; `None` if work is running.
    failed: Option<(usize, i32)>,
}

impl Question {
    /// Checks that nothing is on the device of a context; waits for the end of work up to a limit.
    pub(crate) fn check_idle(&self, context: usize, limit: Duration) -> Result<(), Busy> {
        call(row::cuCtxPushCurrent_v2, |_nothing| [context, 0])?;
        let asked = self.event().and_then(|event| record_and_wait(context, event, limit));
        call(row::cuCtxPopCurrent_v2, |popped| [popped, 0])?;
        asked
    }

    fn event(&self) -> Result<usize, Busy> {
        let mut event = self.event.load(Relaxed);
        if event == 0 {
            event = call(row::cuEventCreate, |to| [to, NO_TIMING])?;
            self.event.store(event, Relaxed);
        }
        Ok(event)
    }
}

impl Busy {
    /// Returns the reason for people.
    pub(crate) fn text(&self) -> String {
        let Some((row, code)) = self.failed else {
            return "busy: work is running on the device".to_owned();
        };
        let name = ENTRIES[row].name.to_string_lossy();
        if code == NOT_FOUND {
            return format!(
                "the driver has no {name}, so nobody can say whether the device is idle; it came with CUDA 12.5"
            );
        }
        format!("{name} failed with {code}")
    }

    /// Returns whether the context is lost: by a fault of the program's work, or by a device that failed. Every
    /// later call gives the same code.
    pub(crate) fn is_lost(&self) -> bool {
        // ECC, NVLink and contained errors; launch timeout, context destroyed, assertion, hardware stack,
        // instruction, alignment, address space, program counter and launch errors; illegal address.
        let lost =
            |code| matches!(code, 214 | 220 | 221 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721);
        self.failed.is_some_and(|(_, code)| lost(code))
    }
}

fn record_and_wait(context: usize, event: usize, limit: Duration) -> Result<(), Busy> {
    call(row::cuCtxRecordEvent, |_nothing| [context, event])?;
    let pauses = Pauses::up_to(limit);
    loop {
        match call(row::cuEventQuery, |_nothing| [event, 0]) {
            Err(Busy { failed: Some((_, NOT_READY)) }) if pauses.pause() => {}
            Err(Busy { failed: Some((_, NOT_READY)) }) => return Err(Busy { failed: None }),
            other => return other.map(drop),
        }
    }
}

fn call(row: usize, words: impl FnOnce(usize) -> [usize; 2]) -> Result<usize, Busy> {
    // SAFETY: the functions above take these words, or the first; none writes more than a word.
    let written = unsafe { calls::value(row, words) };
    written.map(|value| value as usize).map_err(|code| Busy { failed: Some((row, code)) })
}
