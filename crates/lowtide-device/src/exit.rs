//! Whether this process still may touch its devices.
//!
//! Drivers tear themselves down in exit handlers of their own; a call made after that can hang or
//! crash. And a forked child has its parent's handles and none of its threads: what it gave back
//! would be its parent's. In both, what is dropped leaves everything alone: the process's end gives
//! its own back anyway.
#![allow(unsafe_code, reason = "registers C handlers for exit and fork")]

use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Error, Result};

const ALIVE: u8 = 0;
const EXITING: u8 = 1;
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ALIVE);

/// For handlers that go before those of nobody in particular.
pub(crate) static OF_DEVICES: Once = Once::new();
/// For handlers that go before the CUDA driver's.
pub(crate) static OF_DRIVERS: Once = Once::new();

extern "C" fn exiting() {
    STATE.store(EXITING, Ordering::SeqCst);
}

extern "C" fn forked() {
    STATE.store(FORKED, Ordering::SeqCst);
}

/// Watches from now on. Called after a driver was initialised: exit handlers run in reverse order,
/// so this one runs before the driver's.
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

/// Whether what is dropped now must leave its device alone.
pub(crate) fn has_begun() -> bool {
    STATE.load(Ordering::SeqCst) != ALIVE
}

/// Refuses work in a forked child.
pub(crate) fn refuse_after_fork() -> Result<()> {
    if STATE.load(Ordering::SeqCst) == FORKED {
        return Err(Error::Forked);
    }
    Ok(())
}
