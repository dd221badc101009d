//! The functions that tell how much memory there is. A program that is limited is told its limit.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use lowtide_types::Bytes;

use super::hooks::{caught, hooks};
use crate::driver::codes::SUCCESS;
use crate::room::limit;

hooks! {
    answered cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        // SAFETY: the caller's places, which the driver fills.
        unsafe { told(free, total, real(free, total)) }
    };
    quiet cuMemGetInfo(free: *mut u32, total: *mut u32) |real| {
        // SAFETY: the caller's places, which the driver fills.
        unsafe { told(free, total, real(free, total)) }
    };
    answered cuDeviceTotalMem_v2(total: *mut usize, device: i32) |real| {
        // SAFETY: the caller's place, which the driver fills.
        unsafe { told_total(total, device, real(total, device)) }
    };
    answered cuDeviceTotalMem(total: *mut u32, device: i32) |real| {
        // SAFETY: the caller's place, which the driver fills.
        unsafe { told_total(total, device, real(total, device)) }
    };
}

/// Writes what the program is told of the current device over the driver's numbers. Old functions have 32 bits.
///
/// # Safety
/// The driver has written both, if its code says so.
unsafe fn told<N: TryInto<u64> + TryFrom<u64>>(free: *mut N, total: *mut N, code: i32) -> i32 {
    let Some(limits) = limit::get().filter(|_| code == SUCCESS) else { return code };
    // SAFETY: the caller's promise.
    let free_bytes = unsafe { read(free) };
    // SAFETY: the caller's promise.
    let total_bytes = unsafe { read(total) };
    if let Some((told_free, told_total)) = caught(|| limits.told(free_bytes, total_bytes)) {
        // SAFETY: the driver has written there.
        unsafe { write_number(free, told_free) };
        // SAFETY: the driver has written there.
        unsafe { write_number(total, told_total) };
    }
    code
}

/// Writes the most that the program may have on a device over the driver's number.
///
/// # Safety
/// The driver has written it, if its code says so.
unsafe fn told_total<N: TryInto<u64> + TryFrom<u64>>(total: *mut N, device: i32, code: i32) -> i32 {
    let Some(limits) = limit::get().filter(|_| code == SUCCESS) else { return code };
    // SAFETY: the caller's promise.
    let number = unsafe { read(total) };
    if let Some(told) = caught(|| limits.total(device.cast_unsigned(), number)) {
        // SAFETY: the driver has written there.
        unsafe { write_number(total, told) };
    }
    code
}

/// Reads a number of the driver's.
///
/// # Safety
/// The driver has written it.
unsafe fn read<N: TryInto<u64>>(place: *mut N) -> Bytes {
    // SAFETY: the caller's promise.
    Bytes(unsafe { place.read() }.try_into().unwrap_or(u64::MAX))
}

/// Writes a number, if it fits.
///
/// # Safety
/// It is the place of such a number.
unsafe fn write_number<N: TryFrom<u64>>(place: *mut N, number: Bytes) {
    if let Ok(number) = N::try_from(number.0) {
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
    }
}
