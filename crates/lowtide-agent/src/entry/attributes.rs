//! What a program is told of an address, as for plain memory.
#![allow(unsafe_code, reason = "writes where the program says")]

use std::ffi::c_void;

use lowtide_types::DeviceId;

use crate::memory::allocations::Allocation;

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
/// Whether every operation on the memory is synchronous.
pub(crate) const SYNC_MEMOPS: i32 = 6;
pub(crate) const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const RANGE_BYTES: i32 = 12;
const MAPPED: i32 = 13;
const ALLOWED_HANDLE_TYPES: i32 = 14;
const ACCESS_FLAGS: i32 = 16;
const POOL_HANDLE: i32 = 17;

/// Memory of a device.
const DEVICE: i32 = 2;
const READ_AND_WRITE: i32 = 3;

/// Writes an attribute of the memory at an address, with the driver's answers for plain memory and in its
/// widths, as an H200 gave them; false for the others, which the driver knows while the process is awake.
/// Memory of ours cannot be shared the legacy way, and says so.
///
/// # Safety
/// `place` has room for the attribute.
pub(crate) unsafe fn write(
    found: &Allocation,
    attribute: i32,
    at: u64,
    place: *mut c_void,
) -> bool {
    let word = |value: u64| {
        // SAFETY: the caller's promise: these are words.
        unsafe { place.cast::<u64>().write_unaligned(value) };
        true
    };
    let number = |value: i32| {
        // SAFETY: the caller's promise: these are ints.
        unsafe { place.cast::<i32>().write_unaligned(value) };
        true
    };
    match attribute {
        CONTEXT => word(found.home.context as u64),
        MEMORY_TYPE => number(DEVICE),
        DEVICE_POINTER => word(at),
        BUFFER_ID => word(found.id),
        DEVICE_ORDINAL => match found.home.device.id() {
            DeviceId::Cuda(ordinal) => number(ordinal.cast_signed()),
            _ => false,
        },
        RANGE_START => word(found.at),
        RANGE_BYTES => word(found.bytes),
        SYNC_MEMOPS | MAPPED => number(1),
        IS_MANAGED | IS_LEGACY_IPC_CAPABLE => number(0),
        ACCESS_FLAGS => number(READ_AND_WRITE),
        ALLOWED_HANDLE_TYPES | POOL_HANDLE => word(0),
        _ => false,
    }
}

/// Writes a list of attributes, those that [`write()`] knows; false if there are others.
///
/// # Safety
/// The lists have `count` entries, and each place that is not null has room for its attribute.
pub(crate) unsafe fn write_all(
    found: &Allocation,
    at: u64,
    count: u32,
    kinds: *const i32,
    places: *mut *mut c_void,
) -> bool {
    let mut is_complete = true;
    for index in 0..count as usize {
        // SAFETY: the caller's promise.
        let kind = unsafe { kinds.wrapping_add(index).read() };
        // SAFETY: as above.
        let place = unsafe { places.wrapping_add(index).read() };
        // SAFETY: as above.
        is_complete &= !place.is_null() && unsafe { write(found, kind, at, place) };
    }
    is_complete
}
