//! The functions that allocate and free plain memory. Memory that the agent does not take is noted.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use lowtide_types::Bytes;

use super::hooks::{caught, give_back, hooks, is_out_of_memory, note_unmanaged, write};
use crate::driver::calls::current_context;
use crate::driver::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::layouts::{ArrayShape, ArrayShape3d};
use crate::memory::allocations::LEAST;
use crate::memory::unmanaged::{Key, Kind};
use crate::room::{Want, limit};
use crate::say::say;
use crate::sleep::agent;

/// Notes memory of a kind that the driver gave by a call. The expansion is inside a function that stands in for
/// the driver's.
macro_rules! noted {
    ($kind:ident, $at:expr, $bytes:expr, $code:expr) => {
        // SAFETY: the driver's answer, and the caller's place for it.
        unsafe { note_unmanaged(Kind::$kind, $at, $bytes, $code) }
    };
}

hooks! {
    takes(Want::of(bytes)) cuMemAlloc_v2(at: *mut u64, bytes: usize) |real| {
        match if at.is_null() { None } else { caught(|| allocate(bytes as u64)).flatten() } {
            // SAFETY: the caller's place for an address.
            Some(Ok(address)) => unsafe { write(at, address) },
            Some(Err(code)) => code,
            None if bytes as u64 >= LEAST.0 => noted!(Refused, at, bytes, real(at, bytes)),
            None => noted!(Plain, at, bytes, real(at, bytes)),
        }
    };
    quiet cuMemFree_v2(at: u64) |real| {
        free_or(at, || real(at))
    };
    touch cuMemAllocManaged(at: *mut u64, bytes: usize, flags: u32) |real| {
        noted!(Managed, at, bytes, real(at, bytes, flags))
    };
    takes(Want::of(width.saturating_mul(height))) cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) |real| {
        let code = real(at, pitch, width, height, element);
        // SAFETY: the driver has written it.
        let pitch = if code == SUCCESS && !pitch.is_null() { unsafe { *pitch } } else { 0 };
        noted!(Plain, at, pitch.saturating_mul(height), code)
    };
    takes(Want::of(bytes)) [cuMemAllocAsync cuMemAllocAsync_ptsz](at: *mut u64, bytes: usize, stream: usize) |real| {
        noted!(Pool, at, bytes, real(at, bytes, stream))
    };
    takes(Want::of(bytes)) [cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz](
        at: *mut u64, bytes: usize, pool: usize, stream: usize
    ) |real| {
        noted!(Pool, at, bytes, real(at, bytes, pool, stream))
    };
    // Waits for the device where the memory is ours: later than asked for, and never too early.
    quiet [cuMemFreeAsync cuMemFreeAsync_ptsz](at: u64, stream: usize) |real| {
        free_or(at, || real(at, stream))
    };
    takes(array_of(shape, ArrayShape::bytes)) cuArrayCreate_v2(array: *mut u64, shape: *const ArrayShape) |real| {
        let code = real(array, shape);
        // SAFETY: the driver has read it.
        let bytes = if code == SUCCESS { unsafe { *shape }.bytes() } else { 0 };
        noted!(Array, array, bytes, code)
    };
    takes(array_of(shape, ArrayShape3d::bytes)) cuArray3DCreate_v2(array: *mut u64, shape: *const ArrayShape3d) |real| {
        let code = real(array, shape);
        // SAFETY: the driver has read it.
        let bytes = if code == SUCCESS { unsafe { *shape }.bytes() } else { 0 };
        noted!(Array, array, bytes, code)
    };
    quiet cuArrayDestroy(array: u64) |real| {
        give_back(Key::Handle(array), || real(array))
    };
}

/// Returns what an array of a shape takes.
fn array_of<Shape: Copy>(shape: *const Shape, bytes: fn(Shape) -> usize) -> Want {
    // SAFETY: the driver has read it.
    if shape.is_null() { Want::default() } else { Want::of(bytes(unsafe { *shape })) }
}

/// Allocates memory that can sleep; `None` to leave it to the driver.
fn allocate(bytes: u64) -> Option<Result<u64, i32>> {
    let agent = agent::get().filter(|_| bytes >= LEAST.0)?;
    match agent.memory.allocate(&agent.driver, current_context()?, bytes) {
        Ok(address) => Some(Ok(address)),
        Err(error) if is_out_of_memory(&error) => Some(Err(OUT_OF_MEMORY)),
        Err(error) => {
            say!("an allocation of {} stays on the device: {error}", Bytes(bytes));
            None
        }
    }
}

/// Frees memory of ours, or leaves it to the driver.
fn free_or(at: u64, real: impl FnOnce() -> i32) -> i32 {
    match caught(|| agent::get()?.memory.free(at)).flatten() {
        Some(Ok(())) => {
            caught(limit::freed);
            SUCCESS
        }
        Some(Err(lowtide_pool::Error::Device(lowtide_device::Error::Driver { code, .. }))) => code,
        Some(Err(_)) => INVALID_VALUE,
        None => give_back(Key::Address(at), real),
    }
}
