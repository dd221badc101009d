//! NVML: the memory in use on a GPU, and by which processes. Creates no context.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use serde::Serialize;

use crate::facts::{Attempt, DriverLibrary};
use crate::process::Generation;
use crate::{Bytes, Error, Result, Usage, exit, library};
use lowtide_types::Source;

/// The NVML library, loaded and initialised.
pub struct Nvml {
    nvml: ManuallyDrop<nvml_wrapper::Nvml>,
    made_in: Generation,
}

/// The GPU memory of one process, as NVML reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// The process, in the PID namespace of the driver.
    pub pid: u32,
    /// The memory; `None` where the driver does not report it (some containers, Windows).
    pub used: Option<Bytes>,
}

impl Nvml {
    /// Finds, loads and initialises NVML.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the names tried.
    pub fn load() -> Result<Nvml> {
        Nvml::look_up().1
    }

    /// Returns the NVML that is kept for this process: finding and initialising it takes longer than a
    /// reading. A forked child gets its own.
    ///
    /// # Errors
    /// As [`Nvml::load`]; a failure is not kept.
    pub fn kept() -> Result<Arc<Nvml>> {
        static KEPT: Mutex<Option<Arc<Nvml>>> = Mutex::new(None);
        // Never waited for: a fork may have left it locked by a thread that is not there any more.
        let Ok(mut kept) = KEPT.try_lock() else { return Ok(Arc::new(Nvml::load()?)) };
        match &*kept {
            Some(nvml) if nvml.made_in.is_current() => Ok(Arc::clone(nvml)),
            _ => {
                let nvml = Arc::new(Nvml::load()?);
                // The parent's, in a child, is the parent's to shut down.
                std::mem::forget(kept.replace(Arc::clone(&nvml)));
                Ok(nvml)
            }
        }
    }

    /// Loads NVML as [`Nvml::load`] does, and returns every name that was tried as well.
    pub fn look_up() -> (Vec<Attempt>, Result<Nvml>) {
        let open = |path: &Path| {
            // Looked at first by the loader alone: its words are clearer than NVML's.
            library::load(path)?;
            let nvml = nvml_wrapper::Nvml::builder().lib_path(path.as_os_str()).init();
            nvml.map_err(|error| error.to_string())
        };
        let (tried, found) = DriverLibrary::Nvml.find(open);
        (
            tried,
            found.map(|(nvml, _)| {
                let made_in = Generation::current();
                Nvml { nvml: ManuallyDrop::new(nvml), made_in }
            }),
        )
    }

    /// Returns the driver's release, such as `580.159.04`.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn driver_version(&self) -> Result<String> {
        self.nvml.sys_driver_version().map_err(asking("the driver's version"))
    }

    /// Returns the UUIDs of all GPUs, in NVML's order.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn uuids(&self) -> Result<Vec<String>> {
        let count = self.nvml.device_count().map_err(asking("the number of GPUs"))?;
        let uuid = |index| self.nvml.device_by_index(index)?.uuid();
        (0..count)
            .map(uuid)
            .collect::<Result<_, NvmlError>>()
            .map_err(asking("the UUIDs of the GPUs"))
    }

    /// Returns how much memory of a GPU is in use.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn usage(&self, uuid: &str) -> Result<Usage> {
        let device = self.nvml.device_by_uuid(uuid).map_err(asking("the GPU"))?;
        let memory = device.memory_info().map_err(asking("the memory in use"))?;
        Ok(Usage {
            total: Bytes(memory.total),
            free: Bytes(memory.free),
            reserved: Bytes(memory.reserved),
            source: Source::Nvml,
        })
    }

    /// Returns the processes that use memory of a GPU, by PID.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn processes(&self, uuid: &str) -> Result<Vec<ProcessMemory>> {
        let device = self.nvml.device_by_uuid(uuid).map_err(asking("the GPU"))?;
        let compute =
            device.running_compute_processes().map_err(asking("the processes on the GPU"))?;
        // A list that this driver does not have is empty.
        let graphics = device.running_graphics_processes().unwrap_or_default();
        let mps = device.mps_running_compute_processes().unwrap_or_default();
        Ok(merge(compute.into_iter().chain(graphics).chain(mps)))
    }

    /// Returns the processes that use a GPU through the multi-process service; none where the driver cannot
    /// list them.
    pub fn mps_clients(&self, uuid: &str) -> Vec<u32> {
        let clients =
            self.nvml.device_by_uuid(uuid).and_then(|it| it.mps_running_compute_processes());
        clients.unwrap_or_default().into_iter().map(|process| process.pid).collect()
    }

    /// Returns whether a GPU is partitioned into instances (MIG).
    pub fn is_partitioned(&self, uuid: &str) -> bool {
        const ENABLED: u32 = 1;
        let mode = self.nvml.device_by_uuid(uuid).and_then(|it| it.mig_mode());
        mode.is_ok_and(|mode| mode.current == ENABLED)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // Shutting a library down that is itself shutting down is not safe.
        // In a forked child it is the parent's to shut down.
        if self.made_in.is_current() && !exit::has_begun() {
            #[allow(unsafe_code, reason = "drops what is dropped only here")]
            // SAFETY: `self` is going, and nothing uses it afterwards.
            unsafe {
                ManuallyDrop::drop(&mut self.nvml);
            }
        }
    }
}

// One process can be in several lists, each time with all of its memory.
fn merge(entries: impl Iterator<Item = ProcessInfo>) -> Vec<ProcessMemory> {
    let mut by_pid = BTreeMap::new();
    for entry in entries {
        let used = match entry.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let known: &mut Option<Bytes> = by_pid.entry(entry.pid).or_default();
        *known = (*known).max(used);
    }
    by_pid.into_iter().map(|(pid, used)| ProcessMemory { pid, used }).collect()
}

fn asking(question: &'static str) -> impl FnOnce(NvmlError) -> Error {
    move |error| Error::Nvml { question, answer: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_two_lists_counts_once() {
        let entry = |pid, used_gpu_memory| ProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        let merged = merge(
            [
                entry(7, UsedGpuMemory::Used(10)),
                entry(3, UsedGpuMemory::Unavailable),
                entry(7, UsedGpuMemory::Used(10)),
                entry(9, UsedGpuMemory::Unavailable),
                entry(9, UsedGpuMemory::Used(4)),
            ]
            .into_iter(),
        );
        let expected = [(3, None), (7, Some(Bytes(10))), (9, Some(Bytes(4)))];
        assert_eq!(merged, expected.map(|(pid, used)| ProcessMemory { pid, used }));
    }
}
