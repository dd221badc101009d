//! The functions of the driver that the agent answers or notes itself. Everything else is a trampoline
//! (`entries.rs`).
//!
//! Each has the driver's type. The driver's answer is the answer wherever the agent has none of its own.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use lowtide_proto::Obstacle;
use lowtide_types::{Bytes, DeviceId};

use crate::agent::{self, OUT_OF_MEMORY, UNKNOWN};
use crate::arrays::ArrayMapping;
use crate::entries::{ENTRIES, Structure, row};
use crate::memory::{Allocation, LEAST};
use crate::obstacles::say;
use crate::staying::{self, Key, Kind};
use crate::virtual_memory::{Access, Properties, VirtualMemory};
use crate::{arrays, attributes, gate, loader, obstacles, pools, primaries, surroundings};

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
const NOT_FOUND: i32 = 500;

/// Defines functions of the driver. The body sees `real`, the driver's own function. A touch is inside
/// the gate for as long as the body runs, and a quiet call keeps the process from being suspended. `answered`
/// are those that need neither.
macro_rules! hooks {
    ($($(#[$doc:meta])* $class:ident $name:ident($($argument:ident: $kind:ty),*) |$real:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
            let address = ENTRIES[row::$name].real();
            if address.is_null() {
                return NOT_FOUND;
            }
            // SAFETY: the driver's function of this name has this type.
            let function: unsafe extern "C" fn($($kind),*) -> i32 = unsafe { transmute(address) };
            // SAFETY: with the arguments that our caller meant for the driver.
            let $real = |$($argument: $kind),*| unsafe { function($($argument),*) };
            hooks!(@$class $body)
        }
    )*};
    (@touch $body:expr) => {
        match gate::enter() {
            Ok(_pass) => $body,
            Err(code) => code,
        }
    };
    (@quiet $body:expr) => {
        match gate::enter_quietly() {
            Ok(_pass) => $body,
            Err(code) => code,
        }
    };
    (@answered $body:expr) => { $body };
}

hooks! {
    quiet cuInit(flags: u32) |real| {
        let code = real(flags);
        if code == SUCCESS {
            quietly(agent::start);
        }
        code
    };

    /// What the driver itself says about where its functions are; the CUDA runtime asks for each.
    answered cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: i32, flags: u64) |real| {
        let code = real(name, function, version, flags);
        // SAFETY: the arguments of this very function, and the driver's answer.
        unsafe { substitute(name, function, code) };
        code
    };
    answered cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: i32, flags: u64, status: *mut i32
    ) |real| {
        let code = real(name, function, version, flags, status);
        // SAFETY: the arguments of this very function, and the driver's answer.
        unsafe { substitute(name, function, code) };
        code
    };

    touch cuMemAlloc_v2(at: *mut u64, bytes: usize) |real| {
        let ours = if at.is_null() { None } else { quietly(|| allocate(bytes as u64)).flatten() };
        match ours {
            Some(Ok(address)) => {
                // SAFETY: the caller's place for an address.
                unsafe { at.write(address) };
                SUCCESS
            }
            Some(Err(code)) => code,
            _ => {
                let kind = if bytes as u64 >= LEAST.0 { Kind::Refused } else { Kind::Plain };
                taken(kind, at, bytes, real(at, bytes))
            }
        }
    };
    quiet cuMemFree_v2(at: u64) |real| {
        free_or(at, || real(at))
    };
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
            return known_to_driver(at, || real(count, kinds, data, at));
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

    touch cuStreamBeginCapture(stream: usize) |real| {
        captured(true, real(stream))
    };
    touch cuStreamBeginCapture_ptsz(stream: usize) |real| {
        captured(true, real(stream))
    };
    touch cuStreamBeginCapture_v2(stream: usize, mode: i32) |real| {
        captured(true, real(stream, mode))
    };
    touch cuStreamBeginCapture_v2_ptsz(stream: usize, mode: i32) |real| {
        captured(true, real(stream, mode))
    };
    touch cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: i32
    ) |real| {
        captured(true, real(stream, graph, nodes, edges, count, mode))
    };
    touch cuStreamBeginCaptureToGraph_ptsz(
        stream: usize, graph: usize, nodes: usize, edges: usize, count: usize, mode: i32
    ) |real| {
        captured(true, real(stream, graph, nodes, edges, count, mode))
    };
    touch cuStreamEndCapture(stream: usize, graph: usize) |real| {
        captured(false, real(stream, graph))
    };
    touch cuStreamEndCapture_ptsz(stream: usize, graph: usize) |real| {
        captured(false, real(stream, graph))
    };

    quiet cuCtxDestroy(context: usize) |real| {
        leave(context);
        real(context)
    };
    quiet cuCtxDestroy_v2(context: usize) |real| {
        leave(context);
        real(context)
    };
    /// Ends the context or only drops a reference, which nobody can tell beforehand.
    quiet cuCtxDetach(context: usize) |real| {
        obstacles::add("cuCtxDetach");
        real(context)
    };
    touch cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |real| {
        let code = real(context, device);
        if code == SUCCESS && !context.is_null() {
            // SAFETY: the driver has written it.
            primaries::retained(device, unsafe { *context });
        }
        code
    };
    quiet cuDevicePrimaryCtxRelease(device: i32) |real| {
        primaries::released(device).into_iter().for_each(leave);
        real(device)
    };
    quiet cuDevicePrimaryCtxRelease_v2(device: i32) |real| {
        primaries::released(device).into_iter().for_each(leave);
        real(device)
    };
    quiet cuDevicePrimaryCtxReset(device: i32) |real| {
        primaries::of(device).into_iter().for_each(leave);
        real(device)
    };
    quiet cuDevicePrimaryCtxReset_v2(device: i32) |real| {
        primaries::of(device).into_iter().for_each(leave);
        real(device)
    };

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
    touch cuMemAllocManaged(at: *mut u64, bytes: usize, flags: u32) |real| {
        taken(Kind::Managed, at, bytes, real(at, bytes, flags))
    };
    touch cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) |real| {
        let code = real(at, pitch, width, height, element);
        // SAFETY: the driver has written it.
        let pitch = if code == SUCCESS && !pitch.is_null() { unsafe { *pitch } } else { 0 };
        taken(Kind::Plain, at, pitch.saturating_mul(height), code)
    };
    touch cuMemAllocAsync(at: *mut u64, bytes: usize, stream: usize) |real| {
        taken(Kind::Pool, at, bytes, real(at, bytes, stream))
    };
    touch cuMemAllocAsync_ptsz(at: *mut u64, bytes: usize, stream: usize) |real| {
        taken(Kind::Pool, at, bytes, real(at, bytes, stream))
    };
    touch cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, pool: usize, stream: usize) |real| {
        taken(Kind::Pool, at, bytes, real(at, bytes, pool, stream))
    };
    touch cuMemAllocFromPoolAsync_ptsz(at: *mut u64, bytes: usize, pool: usize, stream: usize) |real| {
        taken(Kind::Pool, at, bytes, real(at, bytes, pool, stream))
    };
    /// Waits for the device where the memory is ours: later than asked for, and never too early.
    quiet cuMemFreeAsync(at: u64, stream: usize) |real| {
        free_or(at, || real(at, stream))
    };
    quiet cuMemFreeAsync_ptsz(at: u64, stream: usize) |real| {
        free_or(at, || real(at, stream))
    };
    touch cuArrayCreate_v2(array: *mut u64, shape: *const arrays::Flat) |real| {
        let code = real(array, shape);
        // SAFETY: the driver has read it.
        let bytes = if code == SUCCESS { unsafe { *shape }.bytes() } else { 0 };
        taken(Kind::Array, array, bytes, code)
    };
    touch cuArray3DCreate_v2(array: *mut u64, shape: *const arrays::Deep) |real| {
        let code = real(array, shape);
        // SAFETY: the driver has read it.
        let bytes = if code == SUCCESS { unsafe { *shape }.bytes() } else { 0 };
        taken(Kind::Array, array, bytes, code)
    };
    quiet cuArrayDestroy(array: u64) |real| {
        staying::give_back(Key::Handle(array), || real(array))
    };

    touch cuIpcGetMemHandle(handle: usize, at: u64) |real| {
        obstacles::add("cuIpcGetMemHandle");
        real(handle, at)
    };
    touch cuIpcOpenMemHandle(at: usize, handle: Structure, flags: u32) |real| {
        obstacles::add("cuIpcOpenMemHandle");
        real(at, handle, flags)
    };
    touch cuIpcOpenMemHandle_v2(at: usize, handle: Structure, flags: u32) |real| {
        obstacles::add("cuIpcOpenMemHandle");
        real(at, handle, flags)
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
        obstacles::add("cuMemRetainAllocationHandle");
        real(handle, at)
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

/// Runs something of the agent's; `None` if it panicked, after which the process does not sleep.
fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(run));
    if done.is_err() {
        obstacles::add("a panic of the agent");
    }
    done.ok()
}

/// Replaces a function of the driver by ours.
///
/// # Safety
/// The arguments are those of `cuGetProcAddress`, and `code` is its answer.
unsafe fn substitute(name: *const c_char, function: *mut *mut c_void, code: i32) {
    if code != SUCCESS || name.is_null() || function.is_null() || agent::is_off() {
        return;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as above; the driver has written it.
    let real = unsafe { function.read() };
    let ours = quietly(|| loader::ours_for(name, real)).unwrap_or(real);
    // SAFETY: the caller's promise.
    unsafe { function.write(ours) };
}

/// Allocates memory that can sleep; `None` to leave it to the driver.
fn allocate(bytes: u64) -> Option<Result<u64, i32>> {
    let agent = agent::get().filter(|_| bytes >= LEAST.0)?;
    let context = current_context()?;
    match agent.memory.allocate(&agent.driver, context, bytes) {
        Ok(address) => Some(Ok(address)),
        Err(error) if is_out_of_memory(&error) => Some(Err(OUT_OF_MEMORY)),
        Err(error) => {
            say!("an allocation of {} stays on the device: {error}", Bytes(bytes));
            None
        }
    }
}

fn is_out_of_memory(error: &lowtide_pool::Error) -> bool {
    use lowtide_pool::Error;
    match error {
        Error::Device(error) => error.is_out_of_memory(),
        Error::LargerThanDevice { .. } | Error::NoAddresses { .. } => true,
        _ => false,
    }
}

fn current_context() -> Option<NonNull<c_void>> {
    let address = ENTRIES[row::cuCtxGetCurrent].real();
    if address.is_null() {
        return None;
    }
    // SAFETY: the driver's function of this name has this type.
    let get: unsafe extern "C" fn(*mut *mut c_void) -> i32 = unsafe { transmute(address) };
    let mut context = ptr::null_mut();
    // SAFETY: writes one pointer.
    let code = unsafe { get(&raw mut context) };
    NonNull::new(context).filter(|_| code == SUCCESS)
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

/// Frees memory of ours, or leaves it to the driver.
fn free_or(at: u64, real: impl FnOnce() -> i32) -> i32 {
    match quietly(|| free(at)).flatten() {
        Some(code) => code,
        None => staying::give_back(Key::Address(at), real),
    }
}

/// Frees memory of ours; `None` if it is not.
fn free(at: u64) -> Option<i32> {
    let agent = agent::get()?;
    let allocation = agent.memory.remove(at)?;
    Some(match agent.free(allocation) {
        Ok(()) => SUCCESS,
        Err(lowtide_pool::Error::Device(lowtide_device::Error::Driver { code, .. })) => code,
        Err(_) => INVALID_VALUE,
    })
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

fn around(at: u64) -> Option<Allocation> {
    agent::get()?.memory.around(at)
}

fn captured(began: bool, code: i32) -> i32 {
    // An end is the end of the capture, also where it fails.
    if (!began || code == SUCCESS)
        && let Some(agent) = agent::get()
    {
        quietly(|| agent.capture_changed(began));
    }
    code
}

fn leave(context: usize) {
    if let Some(agent) = agent::get() {
        quietly(|| agent.leave_context(context));
        staying::left(context);
    }
}

/// Notes memory that stays on the device, if the driver gave some.
fn taken(kind: Kind, key: *mut u64, bytes: usize, code: i32) -> i32 {
    if code == SUCCESS && !key.is_null() && agent::get().is_some() {
        if kind == Kind::Pool {
            pools::used();
        }
        // SAFETY: the driver has written it.
        let key = unsafe { *key };
        let context = current_context().map_or(0, |context| context.addr().get());
        quietly(|| staying::taken(kind, key, Bytes(bytes as u64), context));
    }
    code
}
