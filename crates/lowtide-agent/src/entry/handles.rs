//! Virtual memory that the program makes itself. The agent has numbers of its own for the
//! program's handles, so every function that takes a handle is here.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ops::Range;

use lowtide_types::Bytes;

use super::hooks::{around, caught, give_back, hooks, is_out_of_memory, note_unmanaged, write};
use super::trampolines::real_handle;
use crate::driver::calls::{current_context, current_device};
use crate::driver::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, UNKNOWN};
use crate::driver::layouts::{Access, ArrayMapping, Properties};
use crate::memory::allocations::LEAST;
use crate::memory::unmanaged::{Key, Kind};
use crate::memory::virtual_memory::VirtualMemory;
use crate::obstacles;
use crate::room::{Want, limit};
use crate::say::say;
use crate::sleep::agent;

hooks! {
    // SAFETY: the driver reads them, too.
    takes(Want::of_virtual(bytes, unsafe { properties.as_ref() })) cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) |real| {
        let is_asked = !handle.is_null() && !properties.is_null() && flags == 0;
        // SAFETY: the driver reads it, too.
        let ours = || create(bytes as u64, unsafe { *properties });
        match if is_asked { caught(ours).flatten() } else { None } {
            // SAFETY: the caller's place for a handle.
            Some(Ok(number)) => unsafe { write(handle, number) },
            Some(Err(code)) => code,
            // SAFETY: the driver's answer, and the caller's place for it.
            None => unsafe {
                note_unmanaged(Kind::Virtual, handle, bytes, real(handle, bytes, properties, flags))
            },
        }
    };
    quiet cuMemRelease(handle: u64) |real| {
        let ours = agent::get().and_then(|agent| caught(|| agent.virtual_memory.release(handle)));
        if let Some(code) = ours.flatten() {
            caught(limit::freed);
            return code;
        }
        let code = give_back(Key::Handle(handle), || real(handle));
        if let (SUCCESS, Some(agent)) = (code, agent::get()) {
            caught(|| agent.virtual_memory.let_go(handle));
        }
        code
    };
    touch cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |real| {
        with_virtual_memory(
            &range(at, 1),
            |ours| ours.map(at, Bytes(bytes as u64), handle, |handle| real(at, bytes, offset, handle, flags)),
            || real(at, bytes, offset, handle, flags),
        )
    };
    quiet cuMemUnmap(at: u64, bytes: usize) |real| {
        let (range, call) = (range(at, bytes), || real(at, bytes));
        let code = with_virtual_memory(&range, |ours| ours.unmap(range.clone(), call), call);
        caught(limit::freed);
        code
    };
    touch cuMemSetAccess(at: u64, bytes: usize, access: *const Access, count: usize) |real| {
        let call = || real(at, bytes, access, count);
        if access.is_null() || count == 0 {
            return call();
        }
        // SAFETY: the driver has read them.
        let list = || unsafe { std::slice::from_raw_parts(access, count) };
        let range = range(at, bytes);
        with_virtual_memory(&range, |ours| ours.set_access(range.clone(), list, call), call)
    };
    quiet cuMemAddressFree(at: u64, bytes: usize) |real| {
        let (range, call) = (range(at, bytes), || real(at, bytes));
        with_virtual_memory(&range, |ours| ours.free_addresses(&range, call), call)
    };
    answered cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: u64) |real| {
        let ours = agent::get().and_then(|agent| agent.virtual_memory.properties(handle));
        match ours.filter(|_| !properties.is_null()) {
            // SAFETY: the caller's place for them.
            Some(known) => unsafe { write(properties, known) },
            // The driver takes a handle for a pointer, which a released number of ours is not.
            None => real_handle(handle).map_or(INVALID_VALUE, |handle| real(properties, handle)),
        }
    };
    touch cuMemRetainAllocationHandle(handle: *mut u64, at: u64) |real| {
        let ours = agent::get().filter(|_| !handle.is_null());
        if let Some(number) = ours.and_then(|agent| caught(|| agent.virtual_memory.retain(at))).flatten() {
            // SAFETY: the caller's place for a handle.
            return unsafe { write(handle, number) };
        }
        if around(at).is_some() {
            // To the program this is plain memory, which has no handle.
            return INVALID_VALUE;
        }
        let code = real(handle, at);
        if code == SUCCESS {
            obstacles::add("cuMemRetainAllocationHandle");
        }
        code
    };
    touch [cuMemMapArrayAsync cuMemMapArrayAsync_ptsz](list: *mut ArrayMapping, count: u32, stream: usize) |real| {
        with_tiles(list, count, |list| real(list, count, stream))
    };
}

/// Makes virtual memory of the program that can sleep, and returns our number for it; `None` to leave it to the
/// driver.
fn create(bytes: u64, properties: Properties) -> Option<Result<u64, i32>> {
    let (agent, device) = (agent::get()?, properties.device()?);
    if bytes == 0 || !bytes.is_multiple_of(LEAST.0) {
        return None;
    }
    let current = current_context().zip(current_device());
    let context = agent.memory.context_on(&agent.driver, current, device);
    let made = context.and_then(|context| match context {
        Some(context) => agent.virtual_memory.create(&context, Bytes(bytes), properties),
        None => Ok(None),
    });
    match made {
        Ok(made) => made.map(Ok),
        Err(error) if is_out_of_memory(&error) => Some(Err(OUT_OF_MEMORY)),
        // What the driver says of these properties.
        Err(lowtide_pool::Error::Device(lowtide_device::Error::Driver {
            call: "cuMemCreate",
            code,
            ..
        })) => Some(Err(code)),
        Err(error) => {
            say!("virtual memory of {} stays on the device: {error}", Bytes(bytes));
            None
        }
    }
}

/// Has the agent's tables follow a call about virtual memory; makes the plain call where there is no agent. Addresses
/// of our pools, and of memory that another process gave, are plain memory to the program, or nothing: the driver
/// refuses both.
fn with_virtual_memory(
    range: &Range<u64>,
    ours: impl FnOnce(&VirtualMemory) -> i32,
    plain: impl FnOnce() -> i32,
) -> i32 {
    match agent::get() {
        Some(agent) if agent.memory.reserves(range) || agent.imports.has_in(range) => INVALID_VALUE,
        Some(agent) => caught(|| ours(&agent.virtual_memory)).unwrap_or(UNKNOWN),
        None => plain(),
    }
}

/// The most tiles of a list that is read.
const TILES_MOST: u32 = 1 << 20;

/// Calls the driver with a list of tiles of sparse arrays, in which its own handles stand for the program's. Memory
/// under an array is in no table of ours, so the process stays awake.
fn with_tiles(
    list: *mut ArrayMapping,
    count: u32,
    call: impl FnOnce(*mut ArrayMapping) -> i32,
) -> i32 {
    // The driver stops at the first wrong one; nobody has so many.
    if agent::get().is_none() || list.is_null() || count > TILES_MOST {
        return call(list);
    }
    // SAFETY: the driver reads them, too.
    let mut tiles = unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec();
    for tile in &mut tiles {
        let real = real_handle(tile.handle);
        if real != Some(tile.handle) {
            obstacles::add("cuMemMapArrayAsync");
        }
        let Some(real) = real else { return INVALID_VALUE };
        tile.handle = real;
    }
    call(tiles.as_mut_ptr())
}

fn range(at: u64, bytes: usize) -> Range<u64> {
    at..at.saturating_add(bytes as u64)
}
