//! The functions of the driver that the agent answers or notes itself. Everything else is a trampoline
//! (`entries.rs`).
//!
//! Each has the driver's type. The driver's answer is the answer wherever the agent has none of its own.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use lowtide_types::Bytes;

use crate::driver::arrays;
use crate::entry::lookup as loader;
use crate::entry::trampolines::{ENTRIES, Structure, row};
use crate::gate;
use crate::memory::allocations::{Allocation, LEAST};
use crate::memory::unmanaged::{self as staying, Key, Kind};
use crate::memory::{contexts, primaries};
use crate::say::say;
use crate::sleep::agent::{self, OUT_OF_MEMORY};
use crate::sleep::{driver_pools as pools, obstacles};

pub(super) const SUCCESS: i32 = 0;
pub(super) const INVALID_VALUE: i32 = 1;
pub(super) const NOT_FOUND: i32 = 500;

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
pub(super) use hooks;

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

    touch cuCtxCreate(context: *mut usize, flags: u32, device: i32) |real| {
        created(context, real(context, flags, device))
    };
    touch cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32) |real| {
        created(context, real(context, flags, device))
    };
    touch cuCtxCreate_v3(context: *mut usize, partition: usize, count: i32, flags: u32, device: i32) |real| {
        created(context, real(context, partition, count, flags, device))
    };
    touch cuCtxCreate_v4(context: *mut usize, how: usize, flags: u32, device: i32) |real| {
        created(context, real(context, how, flags, device))
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
            let context = unsafe { *context };
            primaries::retained(device, context);
            contexts::made(context);
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
}

/// Runs something of the agent's; `None` if it panicked, after which the process does not sleep.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
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

pub(super) fn is_out_of_memory(error: &lowtide_pool::Error) -> bool {
    use lowtide_pool::Error;
    let has_no_place = matches!(error, Error::LargerThanDevice { .. } | Error::NoAddresses { .. });
    has_no_place || error.is_out_of_memory()
}

pub(super) fn current_context() -> Option<NonNull<c_void>> {
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

pub(super) fn around(at: u64) -> Option<Allocation> {
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

/// Notes a context, if the driver made one.
fn created(context: *mut usize, code: i32) -> i32 {
    if code == SUCCESS && !context.is_null() {
        // SAFETY: the driver has written it.
        contexts::made(unsafe { *context });
    }
    code
}

fn leave(context: usize) {
    contexts::left(context);
    if let Some(agent) = agent::get() {
        quietly(|| agent.leave_context(context));
        staying::left(context);
    }
}

/// Notes memory that stays on the device, if the driver gave some.
pub(super) fn taken(kind: Kind, key: *mut u64, bytes: usize, code: i32) -> i32 {
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
