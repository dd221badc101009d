//! The checkpoint calls, and the gate that holds a process while it is not running.
//!
//! A state is a number in the process's slot of the machine's file, so another
//! process can change it and the process itself sees it at its next call. Locking
//! and entering are each other's mirror: who enters a gated call says so first
//! ([`Slot::busy`](super::machine::Slot)) and then looks at the state; who locks
//! changes the state first and then waits for `busy` to reach zero. Operations on
//! streams count as busy until they are done.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use super::code::{ILLEGAL_STATE, NOT_INITIALIZED, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY};
use super::entry::{In, Out, Outcome, entry};
use super::machine::{self, Slot};

/// Calls in which a process waits while it is locked or checkpointed: what changes the
/// device, and NVML's readings of it (which other processes may have meanwhile).
/// Retaining and releasing a context are not among them; of the first retain and the last
/// release no GPU was asked.
const GATED: &[&str] = &[
    "cuInit",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuLaunchKernel",
    "cuGraphLaunch",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
];

const RUNNING: u64 = 0;
const LOCKED: u64 = 1;
const CHECKPOINTED: u64 = 2;
const FAILED: u64 = 3;
/// Somebody waits for it to be idle: this plus the slot of who does.
const LOCKING: u64 = 16;

const PAUSE: Duration = Duration::from_micros(200);

/// Whether what the process has is on the device.
pub(super) fn is_on_device(slot: &Slot) -> bool {
    ![CHECKPOINTED, FAILED].contains(&slot.state.load(SeqCst))
}

/// Its state. A lock whose waiter died before it had it is no lock.
fn state_of(slot: &Slot) -> u64 {
    let now = slot.state.load(SeqCst);
    let waiter = now.checked_sub(LOCKING).and_then(|waiter| usize::try_from(waiter).ok());
    if waiter.is_some_and(|waiter| !machine::get().is_alive(waiter)) {
        // Whoever else changed it first knew better.
        let _changed = change(slot, now, RUNNING);
        return slot.state.load(SeqCst);
    }
    now
}

/// A gated call that is running.
pub(super) struct Inside(&'static Slot);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

/// Waits, if the call is gated, until the process runs.
pub(super) fn enter(name: &str) -> Option<Inside> {
    let mine = machine::get().mine().filter(|_| GATED.contains(&name))?;
    loop {
        if state_of(mine) == RUNNING {
            mine.busy.fetch_add(1, SeqCst);
            let inside = Inside(mine);
            if mine.state.load(SeqCst) == RUNNING {
                return Some(inside);
            }
        }
        thread::sleep(PAUSE);
    }
}

/// The slot of a process that can be checkpointed.
fn target(pid: i32) -> Outcome<&'static Slot> {
    if let Some(slot) = machine::get().locked().slot_of(pid) {
        return Ok(slot);
    }
    let exists = pid > 0 && std::path::Path::new(&format!("/proc/{pid}")).exists();
    Err(if exists { NOT_INITIALIZED } else { OPERATING_SYSTEM })
}

/// Goes from one state to another, if it is in the first.
fn change(slot: &Slot, from: u64, to: u64) -> Outcome {
    slot.state.compare_exchange(from, to, SeqCst, SeqCst).map(drop).map_err(|_| ILLEGAL_STATE)
}

entry! {
    fn cuCheckpointProcessGetState(pid: i32, state: Out<i32>) {
        let now = state_of(target(pid)?);
        let now = if now >= LOCKING { RUNNING } else { now };
        state.put(i32::try_from(now).unwrap_or(-1))
    }

    // The arguments begin with a time limit in ms; none is no limit.
    fn cuCheckpointProcessLock(pid: i32, args: In<u32>) {
        let slot = target(pid)?;
        let limit_ms = args.get().unwrap_or(0);
        let limit = Instant::now() + Duration::from_millis(limit_ms.into());
        let locking = LOCKING + machine::get().my_index().ok_or(NOT_INITIALIZED)? as u64;
        state_of(slot);
        change(slot, RUNNING, locking)?;
        while slot.busy.load(SeqCst) > 0 {
            if limit_ms > 0 && Instant::now() >= limit {
                change(slot, locking, RUNNING)?;
                return Err(NOT_READY);
            }
            target(pid)?;
            thread::sleep(PAUSE);
        }
        change(slot, locking, LOCKED)
    }

    fn cuCheckpointProcessCheckpoint(pid: i32, _args: usize) {
        change(target(pid)?, LOCKED, CHECKPOINTED)
    }

    fn cuCheckpointProcessRestore(pid: i32, _args: usize) {
        let slot = target(pid)?;
        let turn = machine::get().locked();
        if turn.has_room_for(slot) {
            return change(slot, CHECKPOINTED, LOCKED);
        }
        change(slot, CHECKPOINTED, FAILED)?;
        Err(OUT_OF_MEMORY)
    }

    fn cuCheckpointProcessUnlock(pid: i32, _args: usize) {
        change(target(pid)?, LOCKED, RUNNING)
    }
}
