//! The driver's own pools: what they keep and no allocation uses goes before a sleep.
#![allow(unsafe_code, reason = "calls the driver")]

use std::mem::transmute;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lowtide_types::DeviceId;

use crate::entry::trampolines::{ENTRIES, row};

/// Whether the program has ever used such a pool.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Notes that the program uses the driver's pools.
pub(crate) fn used() {
    IS_USED.store(true, Relaxed);
}

/// Looks up the functions that a trim needs.
pub(crate) fn prepare() {
    for row in [row::cuDeviceGetDefaultMemPool, row::cuMemPoolTrimTo] {
        ENTRIES[row].real();
    }
}

/// Returns the unused memory of a device's default pool to the device. The gate is closed and nothing runs
/// there, so no stream can still use it. A driver that refuses keeps its memory, which is no reason to stay
/// awake.
pub(crate) fn trim(device: DeviceId) {
    let DeviceId::Cuda(ordinal) = device else { return };
    let get = ENTRIES[row::cuDeviceGetDefaultMemPool].real();
    let trim_to = ENTRIES[row::cuMemPoolTrimTo].real();
    if !IS_USED.load(Relaxed) || get.is_null() || trim_to.is_null() {
        return;
    }
    // SAFETY: the driver's function of this name has this type.
    let get: unsafe extern "C" fn(*mut usize, i32) -> i32 = unsafe { transmute(get) };
    // SAFETY: as above.
    let trim_to: unsafe extern "C" fn(usize, usize) -> i32 = unsafe { transmute(trim_to) };
    let mut pool = 0;
    // SAFETY: writes one handle.
    let code = unsafe { get(&raw mut pool, ordinal.cast_signed()) };
    if code == 0 {
        // SAFETY: the handle that the driver gave.
        let _code = unsafe { trim_to(pool, 0) };
    }
}
