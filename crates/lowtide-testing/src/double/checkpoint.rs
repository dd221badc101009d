//! The checkpoint calls.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use super::code::{NOT_INITIALIZED, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY};
use super::entry::entry;
use super::gate::{PAUSE, change, state_of};
use super::machine::{self, CHECKPOINTED, FAILED, LOCKED, LOCKING, ProcessSlot, RUNNING};
use super::pointers::{CallResult, In, Out};

/// Returns the slot of a process that can be checkpointed.
fn target(pid: i32) -> CallResult<&'static ProcessSlot> {
    if let Some(slot) = machine::get().locked().slot_of(pid) {
        return Ok(slot);
    }
    let exists = pid > 0 && std::path::Path::new(&format!("/proc/{pid}")).exists();
    Err(if exists { NOT_INITIALIZED } else { OPERATING_SYSTEM })
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
        let machine = machine::get().locked();
        if machine.has_room_for(slot) {
            return change(slot, CHECKPOINTED, LOCKED);
        }
        change(slot, CHECKPOINTED, FAILED)?;
        Err(OUT_OF_MEMORY)
    }

    fn cuCheckpointProcessUnlock(pid: i32, _args: usize) {
        change(target(pid)?, LOCKED, RUNNING)
    }
}
