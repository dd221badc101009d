//! Whether work is on the device.
//!
//! Asked only while the gate is closed and no capture is open: the question ends a capture.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_void};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use crate::entries::{ENTRIES, row};

/// The time that work has to end before a sleep gives up.
const LIMIT: Duration = Duration::from_millis(5);
/// The flag of an event without a time stamp.
const NO_TIMING: usize = 2;
const SUCCESS: i32 = 0;
const NOT_READY: i32 = 600;

/// Returns why a context is busy; `None` if nothing is on its device.
pub(crate) fn is_busy(context: usize) -> Option<String> {
    ask(context).err().map(Refusal::text)
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
            Refusal::Code(name, code) => format!("{} failed with {code}", name.to_string_lossy()),
            Refusal::Busy => "busy: work is running on the device".to_owned(),
        }
    }
}

fn ask(context: usize) -> Result<(), Refusal> {
    call(row::cuCtxPushCurrent_v2, [context, 0])?;
    let mut event = 0_usize;
    let made = call(row::cuEventCreate, [(&raw mut event).addr(), NO_TIMING]);
    let asked = made.and_then(|()| {
        let asked = record_and_wait(context, event);
        call(row::cuEventDestroy_v2, [event, 0])?;
        asked
    });
    let mut popped = ptr::null_mut::<c_void>();
    call(row::cuCtxPopCurrent_v2, [(&raw mut popped).addr(), 0])?;
    asked
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
