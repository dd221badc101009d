//! Taking another process off the device and putting it back, by its number.
//!
//! The driver lets the target do the work: a caller that dies loses nothing, and no lock has an owner. A
//! thread's number is accepted as its process's, and a stopped target makes a lock hang past its limit.
//! Callers look at both first.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use super::driver::{Driver, checked};
use crate::Result;

/// The state of a process, in the driver's numbers. Newer drivers may have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointState(pub i32);

impl CheckpointState {
    /// The process runs.
    pub const RUNNING: CheckpointState = CheckpointState(0);
    /// Its driver calls wait.
    pub const LOCKED: CheckpointState = CheckpointState(1);
    /// It is off the device.
    pub const CHECKPOINTED: CheckpointState = CheckpointState(2);
    /// It could not be restored.
    pub const FAILED: CheckpointState = CheckpointState(3);
}

/// The arguments of a lock, as in the driver's header: 64 bytes.
#[repr(C)]
struct LockArguments {
    /// The limit; zero for none.
    timeout_ms: u32,
    reserved: [u32; 15],
}

impl Driver {
    /// Returns the state of a process.
    ///
    /// # Errors
    /// Those of [`Driver::checkpoint`], and the driver's: 3 for a process without CUDA, 304 for one that has
    /// ended or may not be traced.
    pub fn process_state(&self, pid: u32) -> Result<CheckpointState> {
        let (calls, mut state) = (self.checkpoint()?, 0);
        let to = &raw mut state;
        // SAFETY: writes one int.
        unsafe { checked!(self, None, calls, cuCheckpointProcessGetState(number(pid), to)) }?;
        Ok(CheckpointState(state))
    }

    /// Waits for the work of a process, and holds its further calls. A limit of zero is one millisecond.
    ///
    /// # Errors
    /// Those of [`Driver::checkpoint`], and the driver's: 600 if its work was not done in time, 401 if it is
    /// locked already.
    pub fn lock_process(&self, pid: u32, limit: Duration) -> Result<()> {
        let calls = self.checkpoint()?;
        let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut arguments = LockArguments { timeout_ms, reserved: [0; 15] };
        let at = (&raw mut arguments).cast::<c_void>();
        // SAFETY: reads 64 bytes, which live as long as the call.
        unsafe { checked!(self, None, calls, cuCheckpointProcessLock(number(pid), at)) }
    }

    /// Takes a locked process off the device. Its memory is copied to host memory of its own.
    ///
    /// # Errors
    /// Those of [`Driver::checkpoint`], and the driver's: 401 if it is not locked.
    pub fn checkpoint_process(&self, pid: u32) -> Result<()> {
        let (calls, default) = (self.checkpoint()?, ptr::null_mut());
        // SAFETY: null stands for the default arguments.
        unsafe { checked!(self, None, calls, cuCheckpointProcessCheckpoint(number(pid), default)) }
    }

    /// Puts a process back on the device; it stays locked. There must be room: a restore that runs out of
    /// memory can leave the process unusable.
    ///
    /// # Errors
    /// Those of [`Driver::checkpoint`], and the driver's: 401 if it is not off the device.
    pub fn restore_process(&self, pid: u32) -> Result<()> {
        let (calls, default) = (self.checkpoint()?, ptr::null_mut());
        // SAFETY: null stands for the default arguments.
        unsafe { checked!(self, None, calls, cuCheckpointProcessRestore(number(pid), default)) }
    }

    /// Lets the calls of a locked process go on.
    ///
    /// # Errors
    /// Those of [`Driver::checkpoint`], and the driver's: 401 if it is not locked.
    pub fn unlock_process(&self, pid: u32) -> Result<()> {
        let (calls, default) = (self.checkpoint()?, ptr::null_mut());
        // SAFETY: null stands for the default arguments.
        unsafe { checked!(self, None, calls, cuCheckpointProcessUnlock(number(pid), default)) }
    }
}

// The kernel gives no larger numbers; the driver refuses this one.
fn number(pid: u32) -> i32 {
    i32::try_from(pid).unwrap_or(-1)
}
