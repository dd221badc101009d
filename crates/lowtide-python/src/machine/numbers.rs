//! The numbers of this machine: the kernel's about the process, the C library's about its
//! allocator, and NVML's about a GPU.
#![allow(unsafe_code, reason = "asks the C library's allocator")]

use std::ffi::CStr;
use std::fs;

use lowtide_device::nvml::{self, Nvml};
use lowtide_proto::helper::ProcessBytes;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::data::values::{AllocatorCounts, ProcessUsage, Usage};
use crate::machine::suspended::{agent_is_suspended, numbers_of};

/// Host memory, as the kernel reports it.
#[pyclass(frozen, eq, get_all, module = "lowtide._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "a number carries its unit")]
pub(crate) struct ProcessMemory {
    /// The memory of the machine.
    total_bytes: u64,
    /// The free part of it.
    free_bytes: u64,
    /// The memory of this process: resident anonymous and shared pages. Mapped files are not
    /// counted, because the kernel reclaims those by itself.
    own_bytes: u64,
}

/// Returns host memory and this process's part of it, as the kernel reports it.
#[pyfunction]
pub(crate) fn process_memory() -> PyResult<ProcessMemory> {
    let machine = fs::read_to_string("/proc/meminfo").map_err(unreadable("/proc/meminfo"))?;
    let own = fs::read_to_string("/proc/self/status").map_err(unreadable("/proc/self/status"))?;
    let number = |text: &str, name: &str| {
        field(text, name)
            .ok_or_else(|| PyOSError::new_err(format!("the kernel does not report {name}")))
    };
    Ok(ProcessMemory {
        total_bytes: number(&machine, "MemTotal:")?,
        free_bytes: number(&machine, "MemAvailable:")?,
        own_bytes: number(&own, "RssAnon:")? + number(&own, "RssShmem:")?,
    })
}

/// Returns the memory of another process, counted in the same way, or `None` if it has ended.
#[pyfunction]
pub(crate) fn memory_of_process(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(field(&status, "RssAnon:")? + field(&status, "RssShmem:")?)
}

fn unreadable(file: &'static str) -> impl FnOnce(std::io::Error) -> PyErr {
    move |error| PyOSError::new_err(format!("{file}: {error}"))
}

// A line such as `RssAnon:      1234 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns what the C library's allocator has allocated, and what it has taken from the kernel.
#[pyfunction]
pub(crate) fn malloc_counts() -> PyResult<AllocatorCounts> {
    let counts = malloc_info()?;
    let (mapped, arenas) = (counts.hblkhd as u64, counts.arena as u64);
    let allocated_bytes = counts.uordblks as u64 + mapped;
    Ok(AllocatorCounts { allocated_bytes, reserved_bytes: arenas + mapped })
}

/// Returns the free memory at the end of the C library's heap. A trim surely returns that much; what
/// else it returns, the library does not say beforehand.
#[pyfunction]
pub(crate) fn malloc_trimmable() -> PyResult<u64> {
    Ok(malloc_info()?.keepcost as u64)
}

fn malloc_info() -> PyResult<libc::mallinfo2> {
    type Ask = unsafe extern "C" fn() -> libc::mallinfo2;
    let found = symbol(c"mallinfo2")?;
    // SAFETY: the C library's function of this name has this signature (malloc.h).
    let ask = unsafe { std::mem::transmute::<*mut libc::c_void, Ask>(found) };
    // SAFETY: it may be called at any time, from any thread.
    Ok(unsafe { ask() })
}

/// Returns the cache of the C library's allocator to the kernel. Returns whether there was any.
#[pyfunction]
pub(crate) fn malloc_trim(py: Python<'_>) -> PyResult<bool> {
    type Trim = unsafe extern "C" fn(libc::size_t) -> libc::c_int;
    let found = symbol(c"malloc_trim")?;
    // SAFETY: the C library's function of this name has this signature (malloc.h).
    let trim = unsafe { std::mem::transmute::<*mut libc::c_void, Trim>(found) };
    // SAFETY: it may be called at any time, from any thread.
    Ok(py.detach(|| unsafe { trim(0) }) != 0)
}

// Looked up on first use: not every C library has it, and the module has to load there too.
fn symbol(name: &CStr) -> PyResult<*mut libc::c_void> {
    // SAFETY: a name that ends in zero, looked up among what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        return Err(PyOSError::new_err(format!("this C library has no {name}")));
    }
    Ok(found)
}

/// The memory of a GPU, as NVML reports it.
#[pyclass(frozen, get_all, new = "from_fields", module = "lowtide._native")]
pub(crate) struct NvmlUsage {
    /// The whole GPU.
    usage: Py<Usage>,
    /// The memory of this process, if NVML reports it.
    own_bytes: Option<u64>,
    /// The memory of other processes.
    others: Vec<Py<ProcessUsage>>,
}

/// Returns the memory of the GPU with this UUID, without its processes: listing those takes longer.
#[pyfunction]
pub(crate) fn nvml_memory(py: Python<'_>, uuid: String) -> PyResult<Usage> {
    let asked = py.detach(move || {
        if agent_is_suspended() {
            return Ok(numbers_of(&uuid)?.usage);
        }
        Nvml::kept().and_then(|nvml| nvml.usage(&uuid)).map_err(|error| error.to_string())
    });
    Ok(Usage::of(asked.map_err(PyRuntimeError::new_err)?))
}

/// Returns what NVML reports about the GPU with this UUID.
#[pyfunction]
pub(crate) fn nvml_usage(py: Python<'_>, uuid: String) -> PyResult<NvmlUsage> {
    let asked = py.detach(move || {
        if agent_is_suspended() {
            let numbers = numbers_of(&uuid)?;
            let process = |it: ProcessBytes| nvml::ProcessMemory { pid: it.pid, used: it.bytes };
            return Ok((numbers.usage, numbers.processes.into_iter().map(process).collect()));
        }
        let nvml = Nvml::kept().map_err(|error| error.to_string())?;
        let usage = nvml.usage(&uuid).map_err(|error| error.to_string())?;
        // If the processes may not be listed, the usage is known all the same.
        Ok((usage, nvml.processes(&uuid).unwrap_or_default()))
    });
    let (usage, processes) = asked.map_err(PyRuntimeError::new_err::<String>)?;
    let own_pid = std::process::id();
    let own = processes.iter().find(|process| process.pid == own_pid).and_then(|it| it.used);
    let others = processes.iter().filter(|process| process.pid != own_pid);
    let others = others.filter_map(|it| {
        let (name, bytes) = (format!("pid {}", it.pid), it.used?.0);
        Some(Py::new(py, ProcessUsage { name, bytes }))
    });
    let others = others.collect::<PyResult<_>>()?;
    let usage = Py::new(py, Usage::of(usage))?;
    Ok(NvmlUsage { usage, own_bytes: own.map(|bytes| bytes.0), others })
}

impl Usage {
    fn of(usage: lowtide_device::Usage) -> Usage {
        let total_bytes = usage.total.saturating_sub(usage.reserved).0;
        Usage { total_bytes, free_bytes: usage.free.0 }
    }
}
