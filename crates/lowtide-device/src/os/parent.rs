//! Child processes that must not outlive the process that started them.
#![allow(unsafe_code, reason = "calls prctl")]

use std::io;

/// Makes the kernel kill this process as soon as its parent ends, however that ends: a measurement
/// whose program was killed must not go on using the device.
///
/// `parent` is the PID that the parent knows itself by. The kernel looks at the thread that started
/// this process, so the parent starts it from a thread that lasts.
///
/// # Errors
/// If the parent has ended already, and if the kernel refuses.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: it takes numbers only.
    let asked = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that ended before the call is not noticed by the kernel: this process has another now.
    if std::os::unix::process::parent_id() == parent {
        return Ok(());
    }
    Err(io::Error::other(format!("the process {parent} that started this one has ended")))
}
