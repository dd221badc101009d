//! The end of a process: when devices must be left alone.
//!
//! Drivers tear themselves down in exit handlers of their own; a call made after that can hang or
//! crash. So once the process exits, dropping something does nothing, and the end of the process gives
//! its memory back anyway. What a forked child may do is another question; see [`crate::process`].
#![allow(unsafe_code, reason = "registers a C handler for exit")]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static EXITING: AtomicBool = AtomicBool::new(false);

/// Guards the registration for devices without a driver.
pub(crate) static OF_DEVICES: Once = Once::new();
/// Guards the registration that has to run before the CUDA driver's exit handlers.
pub(crate) static OF_DRIVERS: Once = Once::new();

extern "C" fn exiting() {
    EXITING.store(true, Ordering::SeqCst);
}

/// Registers a handler for exit. Called after a driver was initialised: exit handlers run in reverse
/// order, so this one runs before the driver's.
pub(crate) fn watch(once: &'static Once) {
    once.call_once(|| {
        // SAFETY: the handler only stores to a static and cannot unwind.
        if unsafe { libc::atexit(exiting) } != 0 {
            tracing::warn!("no handler for exit could be registered");
        }
    });
}

/// Returns whether this process exits: drivers tear themselves down now, and must not be called.
pub fn has_begun() -> bool {
    EXITING.load(Ordering::SeqCst)
}
