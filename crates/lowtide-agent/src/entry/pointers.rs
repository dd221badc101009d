//! What a program asks about addresses.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::c_void;
use std::mem::transmute;

use lowtide_proto::Obstacle;

use super::hooks::{NOT_FOUND, SUCCESS, around, hooks};
use crate::entry::attributes;
use crate::entry::trampolines::{ENTRIES, row};
use crate::gate;
use crate::sleep::{agent, obstacles, surroundings};

hooks! {
    answered cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) |real| {
        match around(at) {
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
        if attribute == attributes::BUFFER_ID && !data.is_null() && is_virtual(at) {
            return buffer_id(data, at, || known_to_driver(at, || real(data, attribute, at)));
        }
        let Some(found) = around(at).filter(|_| !data.is_null()) else {
            return known_to_driver(at, || real(data, attribute, at));
        };
        // SAFETY: the caller's place for this attribute.
        if unsafe { attributes::write(&found, attribute, at, data) } {
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
                unsafe { first_buffer_ids(at, count, kinds, data) };
            }
            return code;
        };
        // SAFETY: the arguments of this very function.
        let write = || unsafe { attributes::write_all(&found, at, count, kinds, data) };
        if write() {
            return SUCCESS;
        }
        // What the driver says of virtual memory is then corrected.
        let code = awake(|| real(count, kinds, data, at));
        if code == SUCCESS {
            write();
        }
        code
    };
    touch cuPointerSetAttribute(value: *const c_void, attribute: i32, at: u64) |real| {
        // SAFETY: the driver reads an int there for this attribute.
        let is_asked = attribute == attributes::SYNC_MEMOPS && !value.is_null() && unsafe { *value.cast::<i32>() } != 0;
        if is_asked && !surroundings::is_ignored(Obstacle::SyncMemops) {
            obstacles::add("SYNC_MEMOPS (cuPointerSetAttribute)");
        }
        real(value, attribute, at)
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

/// Corrects the numbers of virtual memory in a list that the driver has written.
///
/// # Safety
/// The lists have `count` entries, and each place that is not null has its attribute.
unsafe fn first_buffer_ids(at: u64, count: u32, kinds: *const i32, places: *mut *mut c_void) {
    for index in 0..count as usize {
        // SAFETY: the caller's promise.
        let kind = unsafe { kinds.wrapping_add(index).read() };
        // SAFETY: as above.
        let place = unsafe { places.wrapping_add(index).read() };
        if kind == attributes::BUFFER_ID && !place.is_null() {
            buffer_id(place, at, || SUCCESS);
        }
    }
}
