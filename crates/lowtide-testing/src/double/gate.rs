//! The gate that holds a process while it is locked or checkpointed.
//!
//! A state is a number in the process's slot of the machine's file, so another process can change it
//! and the process itself sees it at its next call. Locking and entering are each other's mirror: a
//! thread that enters a gated call says so first ([`ProcessSlot::busy`]) and then looks at the state;
//! a process that locks another changes the state first and then waits for `busy` to reach zero.
//! Operations on streams count as busy until they are done.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use super::code::ILLEGAL_STATE;
use super::machine::{self, LOCKING, ProcessSlot, RUNNING};
use super::pointers::CallResult;

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
    "cuMemcpyDtoDAsync_v2",
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

/// The pause between two looks of a process that waits for another.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

/// Returns the state of a process. A lock whose waiter died before it had it is no lock.
pub(super) fn state_of(slot: &ProcessSlot) -> u64 {
    let now = slot.settled();
    let waiter = now.checked_sub(LOCKING).and_then(|waiter| usize::try_from(waiter).ok());
    if waiter.is_some_and(|waiter| !machine::get().is_alive(waiter)) {
        // Another process may have changed it first.
        let _changed = change(slot, now, RUNNING);
        return slot.state.load(SeqCst);
    }
    now
}

/// A gated call that is running.
pub(super) struct Inside(&'static ProcessSlot);

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

/// Goes from one state to another, if it is in the first.
pub(super) fn change(slot: &ProcessSlot, from: u64, to: u64) -> CallResult {
    slot.state.compare_exchange(from, to, SeqCst, SeqCst).map(drop).map_err(|_| ILLEGAL_STATE)
}
