//! What a program asks about addresses. Memory of ours is described as the driver describes plain memory.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::c_void;

use lowtide_proto::Obstacle;
use lowtide_types::DeviceId;

use super::hooks::{around, hooks};
use crate::driver::calls::has_no_context;
use crate::driver::codes::{INVALID_CONTEXT, INVALID_VALUE, SUCCESS};
use crate::memory::allocations::Allocation;
use crate::sleep::agent;
use crate::{gate, obstacles, settings};

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
/// Whether every operation on the memory is synchronous.
const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
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

hooks! {
    answered cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) |real| {
        match around(at) {
            // Of its own memory the driver says it, too.
            Some(_) if has_no_context() => INVALID_CONTEXT,
            Some(found) => {
                if !base.is_null() {
                    // SAFETY: the caller's place for an address.
                    unsafe { base.write(found.at) };
                }
                if !bytes.is_null() {
                    // SAFETY: the caller's place for a size.
                    unsafe { bytes.write(found.bytes as usize) };
                }
                SUCCESS
            }
            None => known_to_driver(at, || real(base, bytes, at)),
        }
    };
    answered cuPointerGetAttribute(data: *mut c_void, attribute: i32, at: u64) |real| {
        if attribute == BUFFER_ID && !data.is_null() && is_virtual(at) {
            return buffer_id(data, at, || known_to_driver(at, || real(data, attribute, at)));
        }
        let Some(found) = around(at) else {
            return known_to_driver(at, || real(data, attribute, at));
        };
        if data.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller's place for this attribute.
        if unsafe { write_attribute(&found, attribute, at, data) } {
            SUCCESS
        } else {
            awake(|| real(data, attribute, at))
        }
    };
    quiet cuPointerGetAttributes(
        count: u32, kinds: *const i32, data: *mut *mut c_void, at: u64
    ) |real| {
        let is_list = count > 0 && !kinds.is_null() && !data.is_null();
        let Some(found) = around(at).filter(|_| is_list) else {
            let code = known_to_driver(at, || real(count, kinds, data, at));
            if code == SUCCESS && is_list && is_virtual(at) {
                // SAFETY: the arguments of this very function.
                let list = unsafe { list(count, kinds, data) };
                let ids = list.into_iter().filter(|one| one.0 == BUFFER_ID && !one.1.is_null());
                ids.for_each(|(_, place)| _ = buffer_id(place, at, || SUCCESS));
            }
            return code;
        };
        // SAFETY: the arguments of this very function.
        let list = unsafe { list(count, kinds, data) };
        let write = |(kind, place): &(i32, *mut c_void)| {
            // SAFETY: the caller's place for this attribute.
            !place.is_null() && unsafe { write_attribute(&found, *kind, at, *place) }
        };
        let known = list.iter().filter(|one| write(one)).count();
        if known == list.len() {
            return SUCCESS;
        }
        // What the driver says of virtual memory is then corrected.
        let code = awake(|| real(count, kinds, data, at));
        if code == SUCCESS {
            for one in &list {
                write(one);
            }
        }
        code
    };
    touch cuPointerSetAttribute(value: *const c_void, attribute: i32, at: u64) |real| {
        // SAFETY: the driver reads an int there for this attribute.
        let is_asked = attribute == SYNC_MEMOPS && !value.is_null() && unsafe { *value.cast::<i32>() } != 0;
        if is_asked && !settings::is_ignored(Obstacle::SyncMemops) {
            obstacles::add("SYNC_MEMOPS (cuPointerSetAttribute)");
        }
        // The driver has another answer for virtual memory, and this is plain memory to the program.
        match attribute {
            _ if value.is_null() || around(at).is_none() => real(value, attribute, at),
            SYNC_MEMOPS if is_asked => real(value, attribute, at),
            SYNC_MEMOPS => SUCCESS,
            _ => INVALID_VALUE,
        }
    };
}

/// Calls the driver about memory of ours, which it knows only while the process is awake.
fn awake(call: impl FnOnce() -> i32) -> i32 {
    match gate::enter() {
        Ok(_pass) => call(),
        Err(code) => code,
    }
}

/// Calls the driver about an address. The driver knows virtual memory of the program only while the process is awake.
fn known_to_driver(at: u64, call: impl FnOnce() -> i32) -> i32 {
    let is_away = agent::get().is_some_and(|agent| agent.virtual_memory.is_away(at));
    if is_away { awake(call) } else { call() }
}

fn is_own(at: u64) -> bool {
    agent::get().is_some_and(|agent| agent.memory.around(at).is_some())
}

fn is_virtual(at: u64) -> bool {
    agent::get().is_some_and(|agent| agent.virtual_memory.is_mapped(at))
}

/// Writes the number of virtual memory of the program: the first that the driver gave, because it gives another one
/// when the memory is made anew. `call` has the driver write the number.
fn buffer_id(place: *mut c_void, at: u64, call: impl FnOnce() -> i32) -> i32 {
    let place = place.cast::<u64>();
    let Some(agent) = agent::get() else { return call() };
    let known = agent.virtual_memory.buffer_id(at, None);
    let code = if known.is_some() { SUCCESS } else { call() };
    if code == SUCCESS {
        let first = known.unwrap_or_else(|| {
            // SAFETY: the driver has written it.
            let now = unsafe { place.read_unaligned() };
            agent.virtual_memory.buffer_id(at, Some(now)).unwrap_or(now)
        });
        // SAFETY: the caller's place for this attribute.
        unsafe { place.write_unaligned(first) };
    }
    code
}

/// Returns the attributes that a program asks for, with the places for them.
///
/// # Safety
/// The lists have `count` entries.
unsafe fn list(count: u32, kinds: *const i32, places: *mut *mut c_void) -> Vec<(i32, *mut c_void)> {
    // SAFETY: the caller's promise.
    let kinds = unsafe { std::slice::from_raw_parts(kinds, count as usize) };
    // SAFETY: as above.
    let places = unsafe { std::slice::from_raw_parts(places, count as usize) };
    kinds.iter().copied().zip(places.iter().copied()).collect()
}

/// Writes an attribute of the memory at an address, with the driver's answers for plain memory and in its
/// widths, as an H200 gave them; false for the others, which the driver knows while the process is awake.
/// Only memory of this process can be shared the legacy way.
///
/// # Safety
/// `place` has room for the attribute.
unsafe fn write_attribute(found: &Allocation, attribute: i32, at: u64, place: *mut c_void) -> bool {
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
        CONTEXT => word(found.context.handle as u64),
        MEMORY_TYPE => number(DEVICE),
        DEVICE_POINTER => word(at),
        BUFFER_ID => word(found.id),
        DEVICE_ORDINAL => match found.context.device.id() {
            DeviceId::Cuda(ordinal) => number(ordinal.cast_signed()),
            _ => false,
        },
        RANGE_START => word(found.at),
        RANGE_BYTES => word(found.bytes),
        SYNC_MEMOPS | MAPPED => number(1),
        IS_MANAGED => number(0),
        IS_LEGACY_IPC_CAPABLE => number(i32::from(is_own(at))),
        ACCESS_FLAGS => number(READ_AND_WRITE),
        ALLOWED_HANDLE_TYPES | POOL_HANDLE => word(0),
        _ => false,
    }
}
