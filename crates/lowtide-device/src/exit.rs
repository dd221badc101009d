//! The end of a process, and forks: when devices must be left alone.
//!
//! Drivers tear themselves down in exit handlers of their own; a call made after that can hang or
//! crash. A forked child has its parent's handles and none of its threads: giving them back would take
//! them from the parent. In both cases dropping something does nothing, and the end of the process
//! gives its memory back anyway.
#![allow(unsafe_code, reason = "registers C handlers for exit and fork")]

use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Error, Result};

const ALIVE: u8 = 0;
const EXITING: u8 = 1;
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ALIVE);

/// Guards the registration for devices without a driver.
pub(crate) static OF_DEVICES: Once = Once::new();
/// Guards the registration that has to run before the CUDA driver's exit handlers.
pub(crate) static OF_DRIVERS: Once = Once::new();

extern "C" fn exiting() {
    STATE.store(EXITING, Ordering::SeqCst);
}

extern "C" fn forked() {
    STATE.store(FORKED, Ordering::SeqCst);
}

/// Registers handlers for exit and fork. Called after a driver was initialised: exit handlers run in
/// reverse order, so this one runs before the driver's.
pub(crate) fn watch(once: &'static Once) {
    once.call_once(|| {
        // SAFETY: the handler only stores to a static and cannot unwind.
        let exit = unsafe { libc::atexit(exiting) };
        // SAFETY: as above; what it calls is safe between a fork and anything else.
        let fork = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        if exit != 0 || fork != 0 {
            tracing::warn!("no handler for exit or fork could be registered");
        }
    });
}

/// Returns whether a drop must leave its device alone, because the process exits or was forked.
pub(crate) fn has_begun() -> bool {
    STATE.load(Ordering::SeqCst) != ALIVE
}

/// Refuses device work in a forked child.
pub(crate) fn refuse_after_fork() -> Result<()> {
    if STATE.load(Ordering::SeqCst) == FORKED {
        return Err(Error::Forked);
    }
    Ok(())
}
