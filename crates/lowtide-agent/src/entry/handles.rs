//! Virtual memory that the program makes itself, and memory that it shares. The agent has numbers of its own for the
//! program's handles, so every function that takes a handle is here.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::mem::transmute;
use std::ops::Range;

use lowtide_types::{Bytes, DeviceId};

use super::hooks::{
    INVALID_VALUE, NOT_FOUND, SUCCESS, around, current_context, hooks, is_out_of_memory, quietly,
    taken,
};
use crate::driver::arrays::ArrayMapping;
use crate::driver::properties::{Access, Properties};
use crate::entry::trampolines::{ENTRIES, row};
use crate::gate;
use crate::memory::allocations::LEAST;
use crate::memory::unmanaged::{self as staying, Key, Kind};
use crate::memory::virtual_memory::VirtualMemory;
use crate::say::say;
use crate::sleep::agent::{self, OUT_OF_MEMORY, UNKNOWN};
use crate::sleep::obstacles;

hooks! {
    touch cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) |real| {
        let is_asked = !handle.is_null() && !properties.is_null() && flags == 0;
        // SAFETY: the driver reads it, too.
        let ours = || create(bytes as u64, unsafe { *properties });
        match if is_asked { quietly(ours).flatten() } else { None } {
            Some(Ok(number)) => {
                // SAFETY: the caller's place for a handle.
                unsafe { handle.write(number) };
                SUCCESS
            }
            Some(Err(code)) => code,
            None => taken(Kind::Virtual, handle, bytes, real(handle, bytes, properties, flags)),
        }
    };
    quiet cuMemRelease(handle: u64) |real| {
        let ours = agent::get().and_then(|agent| quietly(|| agent.virtual_memory.release(handle)));
        match ours.flatten() {
            Some(code) => code,
            None => staying::give_back(Key::Handle(handle), || real(handle)),
        }
    };
    touch cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |real| {
        with_virtual_memory(
            |ours| ours.map(at, Bytes(bytes as u64), handle, |handle| real(at, bytes, offset, handle, flags)),
            || real(at, bytes, offset, handle, flags),
        )
    };
    quiet cuMemUnmap(at: u64, bytes: usize) |real| {
        with_virtual_memory(|ours| ours.unmap(range(at, bytes), || real(at, bytes)), || real(at, bytes))
    };
    touch cuMemSetAccess(at: u64, bytes: usize, access: *const Access, count: usize) |real| {
        let call = || real(at, bytes, access, count);
        if access.is_null() || count == 0 {
            return call();
        }
        // SAFETY: the driver reads them, too.
        let list = unsafe { std::slice::from_raw_parts(access, count) };
        with_virtual_memory(|ours| ours.set_access(range(at, bytes), list, call), call)
    };
    quiet cuMemAddressFree(at: u64, bytes: usize) |real| {
        let call = || real(at, bytes);
        with_virtual_memory(|ours| ours.free_addresses(&range(at, bytes), call), call)
    };
    answered cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: u64) |real| {
        let ours = agent::get().and_then(|agent| agent.virtual_memory.properties(handle));
        match ours.filter(|_| !properties.is_null()) {
            Some(known) => {
                // SAFETY: the caller's place for them.
                unsafe { properties.write(known) };
                SUCCESS
            }
            None => real(properties, handle),
        }
    };
    touch cuMemExportToShareableHandle(shared: usize, handle: u64, kind: i32, flags: u64) |real| {
        obstacles::add("cuMemExportToShareableHandle");
        with_real(handle, |handle| real(shared, handle, kind, flags))
    };
    touch cuMemImportFromShareableHandle(handle: usize, shared: usize, kind: i32) |real| {
        obstacles::add("cuMemImportFromShareableHandle");
        real(handle, shared, kind)
    };
    touch cuMemRetainAllocationHandle(handle: *mut u64, at: u64) |real| {
        let ours = agent::get().filter(|_| !handle.is_null());
        if let Some(number) = ours.and_then(|agent| quietly(|| agent.virtual_memory.retain(at))).flatten() {
            // SAFETY: the caller's place for a handle.
            unsafe { handle.write(number) };
            return SUCCESS;
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
    touch cuMemGetHandleForAddressRange(
        handle: usize, at: u64, bytes: usize, kind: i32, flags: u64
    ) |real| {
        obstacles::add("cuMemGetHandleForAddressRange");
        real(handle, at, bytes, kind, flags)
    };
    touch cuMulticastCreate(handle: usize, properties: usize) |real| {
        obstacles::add("cuMulticastCreate");
        real(handle, properties)
    };
    touch cuMulticastAddDevice(group: u64, device: i32) |real| {
        with_real(group, |group| real(group, device))
    };
    touch cuMulticastBindMem(
        group: u64, at: usize, handle: u64, offset: usize, bytes: usize, flags: u64
    ) |real| {
        with_real(handle, |handle| with_real(group, |group| real(group, at, handle, offset, bytes, flags)))
    };
    touch cuMulticastBindMem_v2(
        group: u64, device: i32, at: usize, handle: u64, offset: usize, bytes: usize, flags: u64
    ) |real| {
        let bind = |group, handle| real(group, device, at, handle, offset, bytes, flags);
        with_real(handle, |handle| with_real(group, |group| bind(group, handle)))
    };
    touch cuMulticastBindAddr(group: u64, offset: usize, at: u64, bytes: usize, flags: u64) |real| {
        with_real(group, |group| real(group, offset, at, bytes, flags))
    };
    touch cuMulticastBindAddr_v2(
        group: u64, device: i32, offset: usize, at: u64, bytes: usize, flags: u64
    ) |real| {
        with_real(group, |group| real(group, device, offset, at, bytes, flags))
    };
    quiet cuMulticastUnbind(group: u64, device: i32, offset: usize, bytes: usize) |real| {
        with_real(group, |group| real(group, device, offset, bytes))
    };
    touch cuMemMapArrayAsync(list: *mut ArrayMapping, count: u32, stream: usize) |real| {
        with_tiles(list, count, |list| real(list, count, stream))
    };
    touch cuMemMapArrayAsync_ptsz(list: *mut ArrayMapping, count: u32, stream: usize) |real| {
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
    let home = agent.memory.home_on(&agent.driver, current, device);
    let made = home.and_then(|home| {
        home.map_or(Ok(None), |home| agent.virtual_memory.create(&home, Bytes(bytes), properties))
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

/// Has the agent's tables follow a call about virtual memory; makes the plain call where there is no agent.
fn with_virtual_memory(
    ours: impl FnOnce(&VirtualMemory) -> i32,
    plain: impl FnOnce() -> i32,
) -> i32 {
    match agent::get() {
        Some(agent) => quietly(|| ours(&agent.virtual_memory)).unwrap_or(UNKNOWN),
        None => plain(),
    }
}

/// Calls the driver with its own handle for a handle of the program.
fn with_real(handle: u64, call: impl FnOnce(u64) -> i32) -> i32 {
    match agent::get() {
        Some(agent) => agent.virtual_memory.real(handle).map_or(INVALID_VALUE, call),
        None => call(handle),
    }
}

/// Calls the driver with a list of tiles of sparse arrays, in which its own handles stand for the program's. Memory
/// under an array is in no table of ours, so the process stays awake.
fn with_tiles(
    list: *mut ArrayMapping,
    count: u32,
    call: impl FnOnce(*mut ArrayMapping) -> i32,
) -> i32 {
    let Some(agent) = agent::get().filter(|_| !list.is_null()) else { return call(list) };
    // SAFETY: the driver reads them, too.
    let mut tiles = unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec();
    for tile in &mut tiles {
        let real = agent.virtual_memory.real(tile.handle);
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

fn current_device() -> Option<DeviceId> {
    let address = ENTRIES[row::cuCtxGetDevice].real();
    if address.is_null() {
        return None;
    }
    // SAFETY: the driver's function of this name has this type.
    let get: unsafe extern "C" fn(*mut i32) -> i32 = unsafe { transmute(address) };
    let mut device = -1;
    // SAFETY: writes one int.
    let code = unsafe { get(&raw mut device) };
    u32::try_from(device).ok().filter(|_| code == SUCCESS).map(DeviceId::Cuda)
}
