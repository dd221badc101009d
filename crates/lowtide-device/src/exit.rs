//! Whether this process has begun to exit.
//!
//! Drivers tear themselves down in exit handlers of their own; a call made after that can hang or
//! crash. So what is dropped during exit leaves the driver alone: the process's end gives
//! everything back anyway.
#![allow(unsafe_code, reason = "registers a C exit handler")]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static BEGUN: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn begin() {
    BEGUN.store(true, Ordering::SeqCst);
}

/// Watches for the exit from now on. Called after a driver was initialised: handlers run in
/// reverse order, so this one runs before the driver's.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: `begin` only stores to a static and cannot unwind.
        if unsafe { libc::atexit(begin) } != 0 {
            tracing::warn!("no exit handler could be registered");
        }
    });
}

/// Whether exit handlers have begun to run.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Ordering::SeqCst)
}
