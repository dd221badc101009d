//! Memory and events that processes share by handles. What the agent did not make goes to the driver.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use super::hooks::{caught, closed, hooks, opened, write};
use super::trampolines::real_handle;
use crate::driver::calls::current_context;
use crate::driver::codes::{INVALID_CONTEXT, INVALID_VALUE, SUCCESS, UNKNOWN};
use crate::driver::layouts::IpcHandle;
use crate::obstacles::Opened;
use crate::sharing::handle::MemoryHandle;
use crate::sleep::agent::{self, Agent};

/// The flag that a program has to give: other devices get access to the memory when they use it.
const LAZY_PEER_ACCESS: u32 = 1;

hooks! {
    touch cuIpcGetMemHandle(handle: *mut IpcHandle, at: u64) |real| {
        let ours = agent::get().filter(|_| !handle.is_null() && current_context().is_some());
        match ours.and_then(|agent| caught(|| agent.exports.handle_at(&agent.memory, at))).flatten() {
            // SAFETY: the caller's place for a handle.
            Some(bytes) => unsafe { write(handle, IpcHandle(bytes)) },
            None => real(handle, at),
        }
    };
    touch [cuIpcOpenMemHandle cuIpcOpenMemHandle_v2](at: *mut u64, handle: IpcHandle, flags: u32) |real| {
        let Some((agent, ours)) = agent::get().zip(MemoryHandle::from_bytes(&handle.0)) else {
            return opened(Opened::Memory, at, real(at, handle, flags));
        };
        if at.is_null() || flags & LAZY_PEER_ACCESS == 0 {
            return INVALID_VALUE;
        }
        match caught(|| open(agent, &ours)).unwrap_or(Err(UNKNOWN)) {
            // SAFETY: the caller's place for an address.
            Ok(address) => unsafe { write(at, address) },
            Err(code) => code,
        }
    };
    quiet cuIpcCloseMemHandle(at: u64) |real| {
        let ours = agent::get().filter(|_| current_context().is_some());
        match ours.and_then(|agent| caught(|| agent.imports.close(at, agent.memory.is_capturing()))).flatten() {
            Some(code) => code,
            None => closed(Opened::Memory, at, real(at)),
        }
    };
    touch cuIpcOpenEventHandle(event: *mut u64, handle: IpcHandle) |real| {
        opened(Opened::Event, event, real(event, handle))
    };
    quiet [cuEventDestroy cuEventDestroy_v2](event: u64) |real| {
        closed(Opened::Event, event, real(event))
    };
    touch cuMemExportToShareableHandle(shared: usize, handle: u64, kind: u32, flags: u64) |real| {
        let Some(held) = real_handle(handle) else { return INVALID_VALUE };
        let code = real(shared, held, kind, flags);
        if let (SUCCESS, Some(agent)) = (code, agent::get()) {
            caught(|| agent.virtual_memory.exported(handle));
        }
        code
    };
    touch cuMemImportFromShareableHandle(handle: *mut u64, shared: usize, kind: u32) |real| {
        let code = real(handle, shared, kind);
        if let (SUCCESS, Some(agent)) = (code, agent::get()) {
            // SAFETY: the driver has written it.
            let held = unsafe { *handle };
            caught(|| agent.virtual_memory.imported(held));
        }
        code
    };
}

/// Opens memory of another process whose agent made the handle.
fn open(agent: &Agent, handle: &MemoryHandle) -> Result<u64, i32> {
    let context = current_context().ok_or(INVALID_CONTEXT)?;
    if agent.exports.made(handle) {
        return Err(INVALID_CONTEXT);
    }
    let context = agent.memory.context(&agent.driver, context).map_err(|_| UNKNOWN)?;
    agent.imports.open(handle, &context, agent.memory.new_id(), agent.wake_timeout)
}
