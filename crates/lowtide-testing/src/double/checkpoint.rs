//! The checkpoint calls.
//!
//! The target does the work: a checkpoint or a restore that was begun completes although its caller is
//! killed. Calls about a process with such work under way wait for it.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use super::code::{NOT_INITIALIZED, NOT_READY, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY};
use super::entry::entry;
use super::faults;
use super::gate::{PAUSE, change, state_of};
use super::machine::{
    self, CHECKPOINTED, CHECKPOINTING, FAILED, LOCKED, LOCKING, ProcessSlot, RESTORING, RUNNING,
    monotonic_ns,
};
use super::pointers::{CallResult, In, Out};

/// Returns the slot of a process that can be checkpointed. A thread's number stands for its process.
fn target(pid: i32) -> CallResult<&'static ProcessSlot> {
    let process = field(pid, "Tgid:").and_then(|number| number.parse().ok());
    if let Some(slot) = machine::get().locked().slot_of(process.unwrap_or(pid)) {
        return Ok(slot);
    }
    Err(if process.is_some() { NOT_INITIALIZED } else { OPERATING_SYSTEM })
}

/// Returns what the kernel says about a process under a name; `None` if there is no such process.
fn field(pid: i32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next().map(str::to_owned)
}

/// Waits while a checkpoint or a restore is under way. Returns the state then.
fn rested(pid: i32) -> CallResult<(&'static ProcessSlot, u64)> {
    loop {
        let slot = target(pid)?;
        let now = state_of(slot);
        if ![CHECKPOINTING, RESTORING].contains(&now) {
            return Ok((slot, now));
        }
        thread::sleep(PAUSE);
    }
}

/// Has the target do work that takes as long as the settings say, and waits for it.
fn work(pid: i32, slot: &ProcessSlot, from: u64, during: u64) -> CallResult {
    let took_ns = faults::settings().checkpoint_us * 1000;
    slot.done_at.store(monotonic_ns() + took_ns, SeqCst);
    change(slot, from, during)?;
    // The target may be killed meanwhile.
    rested(pid).map(drop).map_err(|_| OPERATING_SYSTEM)
}

entry! {
    fn cuCheckpointProcessGetState(pid: i32, state: Out<i32>) {
        let now = match state_of(target(pid)?) {
            CHECKPOINTING => LOCKED,
            // Of a process that a restore without room has lost, the driver says the same as before it.
            RESTORING | FAILED => CHECKPOINTED,
            LOCKING.. => RUNNING,
            now => now,
        };
        state.put(i32::try_from(now).unwrap_or(-1))
    }

    // The arguments begin with a time limit in ms; none is no limit. A stopped process does not answer, and
    // the limit does not count meanwhile.
    fn cuCheckpointProcessLock(pid: i32, args: In<u32>) {
        let (slot, _) = rested(pid)?;
        let limit_ms = args.get().unwrap_or(0);
        let limit = Instant::now() + Duration::from_millis(limit_ms.into());
        let locking = LOCKING + machine::get().my_index().ok_or(NOT_INITIALIZED)? as u64;
        change(slot, RUNNING, locking)?;
        let is_stopped = || field(pid, "State:").is_some_and(|letter| letter == "T");
        while slot.busy.load(SeqCst) > 0 || is_stopped() {
            if limit_ms > 0 && Instant::now() >= limit && !is_stopped() {
                change(slot, locking, RUNNING)?;
                return Err(NOT_READY);
            }
            target(pid)?;
            thread::sleep(PAUSE);
        }
        change(slot, locking, LOCKED)
    }

    fn cuCheckpointProcessCheckpoint(pid: i32, _args: usize) {
        let (slot, _) = rested(pid)?;
        work(pid, slot, LOCKED, CHECKPOINTING)
    }

    fn cuCheckpointProcessRestore(pid: i32, _args: usize) {
        let (slot, now) = rested(pid)?;
        if now == FAILED {
            return Err(OPERATING_SYSTEM);
        }
        if now == CHECKPOINTED && slot.imports.load(SeqCst) > 0 {
            change(slot, CHECKPOINTED, FAILED)?;
            return Err(NOT_SUPPORTED);
        }
        let machine = machine::get().locked();
        if machine.has_room_for(slot) {
            drop(machine);
            return work(pid, slot, CHECKPOINTED, RESTORING);
        }
        change(slot, CHECKPOINTED, FAILED)?;
        Err(OUT_OF_MEMORY)
    }

    fn cuCheckpointProcessUnlock(pid: i32, _args: usize) {
        let (slot, _) = rested(pid)?;
        change(slot, LOCKED, RUNNING)
    }
}
