//! The numbers of the GPUs while this process is suspended.
//!
//! A suspended process cannot ask the driver or NVML: the question would wait, or bring the process back. The
//! helper, which took the process off the device, reads the numbers for it.
#![allow(unsafe_code, reason = "calls a function of the agent that is found at run time")]

use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use lowtide_device::private_files::PrivateFolder;
use lowtide_proto::helper::{Answer, Ask, DeviceNumbers, Helper};
use pyo3::prelude::*;

/// Returns whether the agent of this process has taken it off its devices. False without an agent.
#[pyfunction]
pub(crate) fn agent_is_suspended() -> bool {
    asked(c"lowtide_is_suspended")
}

/// Returns whether the agent of this process has taken its memory off the devices, and perhaps the process too.
/// False without an agent.
#[pyfunction]
pub(crate) fn agent_is_asleep() -> bool {
    asked(c"lowtide_is_asleep")
}

/// Calls a function of the agent that answers yes or no.
fn asked(name: &CStr) -> bool {
    type Question = unsafe extern "C" fn() -> c_int;
    // SAFETY: a name that ends in zero, looked up among what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return false;
    }
    // SAFETY: the agent's functions of these names have this signature.
    let question = unsafe { std::mem::transmute::<*mut libc::c_void, Question>(found) };
    // SAFETY: it reads one word, at any time and from any thread.
    unsafe { question() != 0 }
}

/// Asks the helper for the numbers of a GPU. It runs for as long as a process is suspended.
pub(crate) fn numbers_of(uuid: &str) -> Result<DeviceNumbers, String> {
    let folder = PrivateFolder::of_user().map_err(|error| error.to_string())?;
    // Nothing is started from here: the agent does that when the process comes back.
    let helper = Helper::new(folder.path(), PathBuf::new());
    let connection = helper.running().map_err(|error| error.to_string())?;
    let mut connection = connection.ok_or("this process is suspended, and the helper has ended")?;
    match connection.ask(Ask::Devices).map_err(|error| error.to_string())? {
        Answer::Devices { devices } => devices
            .into_iter()
            .find(|device| device.uuid == uuid)
            .ok_or_else(|| format!("the helper does not see {uuid}")),
        Answer::Refused { refusal } => Err(refusal.to_string()),
        answer => Err(format!("the helper answered something else: {}", answer.to_line())),
    }
}
