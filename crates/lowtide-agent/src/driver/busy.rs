//! Whether work is on the device.
//!
//! Asked only while the gate is closed and no capture is open: the question ends a capture.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use crate::entry::trampolines::{ENTRIES, row};
use crate::sleep::obstacles;

/// The time that work has to end before a sleep gives up.
const LIMIT: Duration = Duration::from_millis(5);
/// The flag of an event without a time stamp.
const NO_TIMING: usize = 2;
const SUCCESS: i32 = 0;
const NOT_READY: i32 = 600;

/// Looks up the functions that a question needs.
pub(crate) fn prepare() {
    let rows = [
        row::cuCtxPushCurrent_v2,
        row::cuCtxPopCurrent_v2,
        row::cuEventCreate,
        row::cuCtxRecordEvent,
        row::cuEventQuery,
    ];
    for row in rows {
        ENTRIES[row].real();
    }
}

/// The event with which a context is asked. It is made at the first question and goes with its context.
#[derive(Default)]
pub(crate) struct Question {
    /// Zero before it is made. Only the worker asks.
    event: AtomicUsize,
}

impl Question {
    /// Returns why a context is busy; `None` if nothing is on its device.
    pub(crate) fn is_busy(&self, context: usize) -> Option<String> {
        self.ask(context).err().map(Refusal::text)
    }

    fn ask(&self, context: usize) -> Result<(), Refusal> {
        call(row::cuCtxPushCurrent_v2, [context, 0])?;
        let asked = self.event().and_then(|event| record_and_wait(context, event));
        let mut popped = ptr::null_mut::<c_void>();
        call(row::cuCtxPopCurrent_v2, [(&raw mut popped).addr(), 0])?;
        asked
    }

    fn event(&self) -> Result<usize, Refusal> {
        let mut event = self.event.load(Relaxed);
        if event == 0 {
            call(row::cuEventCreate, [(&raw mut event).addr(), NO_TIMING])?;
            self.event.store(event, Relaxed);
        }
        Ok(event)
    }
}

/// A call that the driver refused, and its code.
enum Refusal {
    Missing(&'static CStr),
    Code(&'static CStr, i32),
    Busy,
}

impl Refusal {
    fn text(self) -> String {
        match self {
            Refusal::Missing(name) => format!(
                "the driver has no {}, so nobody can say whether the device is idle; it came with CUDA \
                 12.5",
                name.to_string_lossy()
            ),
            Refusal::Code(name, code) => {
                let name = name.to_string_lossy();
                if is_lost(code) {
                    // Nothing works in it any more, now or later.
                    obstacles::add(&format!("a lost context ({name} failed with {code})"));
                }
                format!("{name} failed with {code}")
            }
            Refusal::Busy => "busy: work is running on the device".to_owned(),
        }
    }
}

/// Returns whether a code says that the context is lost: by a fault of the program's work, or by a device
/// that failed. Every later call gives the same code.
fn is_lost(code: i32) -> bool {
    // ECC, NVLink and contained errors; launch timeout, context destroyed, assertion, hardware stack,
    // instruction, alignment, address space, program counter and launch errors; illegal address.
    matches!(code, 214 | 220 | 221 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
}

fn record_and_wait(context: usize, event: usize) -> Result<(), Refusal> {
    call(row::cuCtxRecordEvent, [context, event])?;
    let began = Instant::now();
    loop {
        match call(row::cuEventQuery, [event, 0]) {
            Err(Refusal::Code(_, NOT_READY)) if began.elapsed() < LIMIT => thread::yield_now(),
            Err(Refusal::Code(_, NOT_READY)) => return Err(Refusal::Busy),
            other => return other,
        }
    }
}

/// Calls a function of the driver that takes at most two words. It ignores a word too many.
fn call(row: usize, [first, second]: [usize; 2]) -> Result<(), Refusal> {
    let (name, real) = (ENTRIES[row].name, ENTRIES[row].real());
    if real.is_null() {
        return Err(Refusal::Missing(name));
    }
    // SAFETY: the driver's function; all that are called here take one or two words.
    let function: unsafe extern "C" fn(usize, usize) -> i32 = unsafe { mem::transmute(real) };
    // SAFETY: the words are what the function takes.
    match unsafe { function(first, second) } {
        SUCCESS => Ok(()),
        code => Err(Refusal::Code(name, code)),
    }
}
