//! NVML: the memory in use on a GPU, and by which processes. Creates no context.

mod functions;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use self::functions::{Answer, Functions, List, Listed};
use crate::facts::{Attempt, DriverLibrary};
use crate::os::exit;
use crate::os::library;
use crate::os::process::Generation;
use crate::{Bytes, Error, Result, Usage};
use lowtide_types::Source;

/// The NVML library, loaded and initialised.
pub struct Nvml {
    functions: Functions,
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
        let open = |path: &Path| Functions::initialise(library::load(path)?);
        let (tried, found) = DriverLibrary::Nvml.find(open);
        let made_in = Generation::current();
        (tried, found.map(|(functions, _)| Nvml { functions, made_in }))
    }

    /// Returns the driver's release, such as `580.159.04`.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn driver_version(&self) -> Result<String> {
        self.functions.driver_version().map_err(asking("the driver's version"))
    }

    /// Returns the UUIDs of all GPUs, in NVML's order.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn uuids(&self) -> Result<Vec<String>> {
        let count = self.functions.count().map_err(asking("the number of GPUs"))?;
        let uuid = |index| self.functions.uuid(self.functions.gpu_at(index)?);
        (0..count).map(uuid).collect::<Answer<_>>().map_err(asking("the UUIDs of the GPUs"))
    }

    /// Returns how much memory of a GPU is in use.
    ///
    /// # Errors
    /// NVML's error, as [`Error::Nvml`].
    pub fn usage(&self, uuid: &str) -> Result<Usage> {
        let gpu = self.functions.gpu(uuid).map_err(asking("the GPU"))?;
        let memory = self.functions.memory(gpu).map_err(asking("the memory in use"))?;
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
        let gpu = self.functions.gpu(uuid).map_err(asking("the GPU"))?;
        let list = |list| self.functions.processes(gpu, list);
        let compute = list(List::Compute).map_err(asking("the processes on the GPU"))?;
        // A list that this driver does not have is empty.
        let others = [List::Graphics, List::Mps].map(|other| list(other).unwrap_or_default());
        Ok(merge(compute.into_iter().chain(others.into_iter().flatten())))
    }

    /// Returns the processes that use a GPU through the multi-process service; none where the driver cannot
    /// list them.
    pub fn mps_clients(&self, uuid: &str) -> Vec<u32> {
        let clients =
            self.functions.gpu(uuid).and_then(|gpu| self.functions.processes(gpu, List::Mps));
        clients.unwrap_or_default().into_iter().map(|process| process.pid).collect()
    }

    /// Returns whether a GPU is partitioned into instances (MIG).
    pub fn is_partitioned(&self, uuid: &str) -> bool {
        let gpu = self.functions.gpu(uuid);
        gpu.and_then(|gpu| self.functions.is_partitioned(gpu)).unwrap_or(false)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // Shutting a library down that is itself shutting down is not safe.
        // In a forked child it is the parent's to shut down.
        if self.made_in.is_current() && !exit::has_begun() {
            self.functions.shut_down();
        }
    }
}

// One process can be in several lists, each time with all of its memory.
fn merge(entries: impl Iterator<Item = Listed>) -> Vec<ProcessMemory> {
    let mut by_pid = BTreeMap::new();
    for Listed { pid, used } in entries {
        let known: &mut Option<Bytes> = by_pid.entry(pid).or_default();
        *known = (*known).max(used.map(Bytes));
    }
    by_pid.into_iter().map(|(pid, used)| ProcessMemory { pid, used }).collect()
}

fn asking(question: &'static str) -> impl FnOnce(String) -> Error {
    move |answer| Error::Nvml { question, answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_two_lists_counts_once() {
        let entries = [(7, Some(10)), (3, None), (7, Some(10)), (9, None), (9, Some(4))];
        let merged = merge(entries.into_iter().map(|(pid, used)| Listed { pid, used }));
        let expected = [(3, None), (7, Some(Bytes(10))), (9, Some(Bytes(4)))];
        assert_eq!(merged, expected.map(|(pid, used)| ProcessMemory { pid, used }));
    }
}
