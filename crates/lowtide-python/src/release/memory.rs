//! The numbers of this machine: what the kernel says of the process, what the C library's allocator
//! says of itself, what NVML says of a GPU.
#![allow(unsafe_code, reason = "asks the C library's allocator")]

use std::ffi::CStr;
use std::fs;

use lowtide_device::nvml::Nvml;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

/// What the machine has, what of it is free, and this process's part, as the kernel says: anonymous
/// and shared pages that are resident. Files it has mapped are not counted: the kernel takes those back
/// by itself.
#[pyfunction]
pub(crate) fn process_memory() -> PyResult<(u64, u64, u64)> {
    let machine = fs::read_to_string("/proc/meminfo").map_err(unreadable("/proc/meminfo"))?;
    let own = fs::read_to_string("/proc/self/status").map_err(unreadable("/proc/self/status"))?;
    let told = |text: &str, name: &str| {
        field(text, name)
            .ok_or_else(|| PyOSError::new_err(format!("the kernel does not tell {name}")))
    };
    let own = told(&own, "RssAnon:")? + told(&own, "RssShmem:")?;
    Ok((told(&machine, "MemTotal:")?, told(&machine, "MemAvailable:")?, own))
}

fn unreadable(file: &'static str) -> impl FnOnce(std::io::Error) -> PyErr {
    move |error| PyOSError::new_err(format!("{file}: {error}"))
}

// A line such as `RssAnon:      1234 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// What the C library's allocator has handed out, and what it has taken from the kernel.
#[pyfunction]
pub(crate) fn malloc_counts() -> PyResult<(u64, u64)> {
    type Ask = unsafe extern "C" fn() -> libc::mallinfo2;
    let found = symbol(c"mallinfo2")?;
    // SAFETY: the C library's function of this name has this signature (malloc.h).
    let ask = unsafe { std::mem::transmute::<*mut libc::c_void, Ask>(found) };
    // SAFETY: it may be called at any time, from any thread.
    let counts = unsafe { ask() };
    let (mapped, arenas) = (counts.hblkhd as u64, counts.arena as u64);
    Ok((counts.uordblks as u64 + mapped, arenas + mapped))
}

/// Gives what the C library's allocator has cached back to the kernel; says whether anything was.
#[pyfunction]
pub(crate) fn malloc_trim(py: Python<'_>) -> PyResult<bool> {
    type Trim = unsafe extern "C" fn(libc::size_t) -> libc::c_int;
    let found = symbol(c"malloc_trim")?;
    // SAFETY: the C library's function of this name has this signature (malloc.h).
    let trim = unsafe { std::mem::transmute::<*mut libc::c_void, Trim>(found) };
    // SAFETY: it may be called at any time, from any thread.
    Ok(py.detach(|| unsafe { trim(0) }) != 0)
}

// Looked up when it is wanted: not every C library has it, and the module shall load there too.
fn symbol(name: &CStr) -> PyResult<*mut libc::c_void> {
    // SAFETY: a name that ends in zero, looked up among what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        return Err(PyOSError::new_err(format!("the C library here has no {name}")));
    }
    Ok(found)
}

/// What NVML says of a GPU: what processes can have, what of it is free, this process's part where it
/// is told, and who else holds some.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a tuple is what Python reads")]
pub(crate) fn nvml_usage(
    py: Python<'_>,
    uuid: String,
) -> PyResult<(u64, u64, Option<u64>, Vec<(String, u64)>)> {
    let asked = py.detach(move || {
        let nvml = Nvml::kept()?;
        let usage = nvml.usage(&uuid)?;
        // Where nobody may know who is there, what is in use is known all the same.
        Ok((usage, nvml.processes(&uuid).unwrap_or_default()))
    });
    let (usage, processes) =
        asked.map_err(|error: lowtide_device::Error| PyRuntimeError::new_err(error.to_string()))?;
    let own_pid = std::process::id();
    let own = processes.iter().find(|process| process.pid == own_pid).and_then(|it| it.used);
    let others = processes.iter().filter(|process| process.pid != own_pid);
    let others = others.filter_map(|it| Some((format!("pid {}", it.pid), it.used?.0))).collect();
    let total = usage.total.saturating_sub(usage.reserved);
    Ok((total.0, usage.free.0, own.map(|bytes| bytes.0), others))
}
