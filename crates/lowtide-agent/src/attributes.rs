//! What a program is told of an address, as for plain memory.
#![allow(unsafe_code, reason = "writes where the program says")]

use std::ffi::c_void;

use crate::memory::Allocation;

const CONTEXT: i32 = 1;
/// Whether every operation on the memory is synchronous.
pub(crate) const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const RANGE_BYTES: i32 = 12;
const MAPPED: i32 = 13;

/// Writes an attribute; false where the driver knows it as well.
///
/// # Safety
/// `place` has room for the attribute.
pub(crate) unsafe fn write(found: &Allocation, attribute: i32, place: *mut c_void) -> bool {
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
        BUFFER_ID => word(found.id),
        RANGE_START => word(found.at),
        RANGE_BYTES => word(found.bytes),
        MAPPED => number(1),
        SYNC_MEMOPS | IS_LEGACY_IPC_CAPABLE => number(0),
        _ => false,
    }
}
