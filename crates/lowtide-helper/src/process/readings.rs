//! The memory of devices and processes, as NVML reports it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_device::identity::{self, Identity};
use lowtide_device::nvml::{Nvml, ProcessMemory};
use lowtide_device::processes::{self, DeviceProcesses, ProcessUsage};
use lowtide_proto::helper::{DeviceBytes, DeviceChange, DeviceNumbers, ProcessBytes, Refusal};
use lowtide_types::{Bytes, Usage, Verdict};

use crate::share::{DeviceFree, Other};

/// The number of tries to get readings that match.
const TRIES: usize = 5;
/// The memory that is to be free beside what a process needs, if as much was free when it left. Of a small device a
/// sixteenth.
const MARGIN: Bytes = Bytes::mib(64);
const MARGIN_PART: u64 = 16;
/// The difference between two readings that means nothing: small memory of drivers and displays.
const NOISE: Bytes = Bytes::mib(16);

/// All GPUs at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) devices: Vec<DeviceReading>,
}

/// A GPU at one moment.
#[derive(Debug, Clone)]
pub(crate) struct DeviceReading {
    pub(crate) uuid: String,
    pub(crate) usage: Usage,
    processes: Vec<ProcessMemory>,
}

impl Reading {
    /// Reads all GPUs.
    pub(crate) fn now() -> Result<Reading, Refusal> {
        let read = || -> lowtide_device::Result<Reading> {
            let nvml = Nvml::kept()?;
            let uuids = nvml.uuids()?.into_iter();
            let devices = uuids.map(|uuid| DeviceReading::now(&nvml, uuid));
            Ok(Reading { devices: devices.collect::<Result<_, _>>()? })
        };
        // Without numbers nobody knows whether there is room for a process to come back.
        read().map_err(|error| Refusal::NoDriver { why: error.to_string() })
    }

    /// Returns the numbers for whoever asks.
    pub(crate) fn numbers(self) -> Vec<DeviceNumbers> {
        let process =
            |process: ProcessMemory| ProcessBytes { pid: process.pid, bytes: process.used };
        let device = |device: DeviceReading| DeviceNumbers {
            uuid: device.uuid,
            usage: device.usage,
            processes: device.processes.into_iter().map(process).collect(),
        };
        self.devices.into_iter().map(device).collect()
    }

    /// Returns the devices on which the process has memory; all of them where NVML lists it nowhere, as in
    /// another PID namespace.
    pub(crate) fn devices_of(&self, pid: u32) -> Vec<&DeviceReading> {
        let on = self.devices.iter().filter(|device| device.lists(pid)).collect::<Vec<_>>();
        if on.is_empty() { self.devices.iter().collect() } else { on }
    }

    /// Returns whether NVML lists the process on any device.
    pub(crate) fn lists(&self, pid: u32) -> bool {
        self.devices.iter().any(|device| device.lists(pid))
    }

    /// Returns whether NVML tells the memory of the process wherever it is.
    pub(crate) fn tells(&self, pid: u32) -> bool {
        let mut on = self.devices.iter().filter(|device| device.lists(pid)).peekable();
        on.peek().is_some() && on.all(|device| device.memory_of(pid).is_some())
    }

    /// Returns the memory that must be free before a process can come back that is on the device now. Where
    /// NVML does not tell its memory, all that is in use is the most that it can have.
    pub(crate) fn needs_of(&self, pid: u32) -> Vec<DeviceBytes> {
        let need = |device: &&DeviceReading| {
            let usage = device.usage;
            let used = device.memory_of(pid).unwrap_or_else(|| usage.in_use());
            let margin = MARGIN.min(usage.free).min(Bytes(device.capacity().0 / MARGIN_PART));
            DeviceBytes { uuid: device.uuid.clone(), bytes: used + margin }
        };
        self.devices_of(pid).iter().map(need).collect()
    }

    /// Returns the need of a process for which nothing was written down: all the host memory that it has,
    /// because the driver's copy is part of that, and a context.
    pub(crate) fn needs_of_stranger(&self, resident: Bytes) -> Vec<DeviceBytes> {
        let bytes = resident + Bytes::gib(1);
        self.devices.iter().map(|device| DeviceBytes { uuid: device.uuid.clone(), bytes }).collect()
    }

    /// Finds a device.
    pub(crate) fn device(&self, uuid: &str) -> Option<&DeviceReading> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }

    /// Returns the numbers of these devices now and in a later reading.
    pub(crate) fn changes(&self, later: &Reading, pid: u32, uuids: &[String]) -> Vec<DeviceChange> {
        let change = |uuid: &String| {
            let (before, after) = (self.device(uuid)?, later.device(uuid)?);
            // Not being listed means zero where NVML lists the process at the other moment.
            let of = |one: &DeviceReading, other: &DeviceReading| {
                let is_gone = !one.lists(pid) && other.lists(pid);
                one.memory_of(pid).or(is_gone.then_some(Bytes::ZERO))
            };
            Some(DeviceChange {
                uuid: uuid.clone(),
                process_before: of(before, after),
                process_after: of(after, before),
                before: before.usage,
                after: after.usage,
            })
        };
        uuids.iter().filter_map(change).collect()
    }

    /// Judges whether a process has left the devices: NVML does not list it any more, and no memory is in use
    /// that was a process's before and is nobody's now.
    pub(crate) fn verdict(&self, later: &Reading, pid: u32, uuids: &[String]) -> Verdict {
        let mut verdict = Verdict::Released;
        for uuid in uuids {
            let (Some(before), Some(after)) = (self.device(uuid), later.device(uuid)) else {
                return Verdict::Unverified;
            };
            if after.lists(pid) {
                return Verdict::Partial;
            }
            if before.memory_of(pid).is_none() || after.nobodys() > before.nobodys() + NOISE {
                verdict = Verdict::Unverified;
            }
        }
        verdict
    }
}

impl DeviceReading {
    // Readings from different moments would leave a difference that no process uses.
    fn now(nvml: &Nvml, uuid: String) -> lowtide_device::Result<DeviceReading> {
        let mut usage = nvml.usage(&uuid)?;
        let mut processes = nvml.processes(&uuid)?;
        for _ in 1..TRIES {
            let again = nvml.usage(&uuid)?;
            if again == usage {
                break;
            }
            (usage, processes) = (again, nvml.processes(&uuid)?);
        }
        Ok(DeviceReading { uuid, usage, processes })
    }

    fn lists(&self, pid: u32) -> bool {
        self.processes.iter().any(|process| process.pid == pid)
    }

    fn memory_of(&self, pid: u32) -> Option<Bytes> {
        self.processes.iter().find(|process| process.pid == pid)?.used
    }

    // What is in use and belongs to no process that NVML names.
    fn nobodys(&self) -> Bytes {
        let named = self.processes.iter().filter_map(|process| process.used).sum();
        self.usage.in_use().saturating_sub(named)
    }

    /// Returns the most that this device can have free.
    pub(crate) fn capacity(&self) -> Bytes {
        self.usage.total.saturating_sub(self.usage.reserved)
    }
}

/// The time between two looks at the processes on the devices, which take longer than the numbers.
const OTHERS: Duration = Duration::from_secs(1);

/// The free memory of all GPUs, and the processes there that do not share, which are looked for now and then.
#[derive(Debug, Default)]
pub(crate) struct FreeNumbers {
    others: BTreeMap<String, Vec<Other>>,
    looked: Option<Instant>,
}

impl FreeNumbers {
    /// Reads the numbers of this moment. Processes with these numbers share.
    pub(crate) fn read(&mut self, sharing: &[u32]) -> Result<Vec<DeviceFree>, Refusal> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= OTHERS) {
            (self.others, self.looked) = (others(sharing), Some(Instant::now()));
        }
        let read = || -> lowtide_device::Result<Vec<DeviceFree>> {
            let nvml = Nvml::kept()?;
            let device = |uuid: String| {
                let usage = nvml.usage(&uuid)?;
                let capacity = usage.total.saturating_sub(usage.reserved);
                let others = self.others.get(&uuid).cloned().unwrap_or_default();
                Ok(DeviceFree { uuid, capacity, free: usage.free, others })
            };
            nvml.uuids()?.into_iter().map(device).collect()
        };
        read().map_err(|error| Refusal::NoDriver { why: error.to_string() })
    }
}

/// Returns the processes on each device that do not share. In a container the driver's numbers of processes are not
/// ours, and nobody is named.
fn others(sharing: &[u32]) -> BTreeMap<String, Vec<Other>> {
    if !identity::sees_driver_pids() {
        return BTreeMap::new();
    }
    let devices = processes::gpus().map(|(devices, _)| devices).unwrap_or_default();
    let other = |it: ProcessUsage| {
        let command = match it.identity {
            Identity::Known { name, .. } => name,
            _ => "of another user".to_owned(),
        };
        Other { pid: it.pid, command, bytes: it.held }
    };
    let of = |device: DeviceProcesses| {
        let others = device.processes.into_iter().filter(|it| !sharing.contains(&it.pid));
        Some((device.uuid?, others.map(other).collect()))
    };
    devices.into_iter().filter_map(of).collect()
}

/// Checks that nothing is in force on these devices that the driver's checkpoint does not support. The driver
/// would refuse too, after it has locked the process.
pub(crate) fn check_modes(pid: u32, uuids: &[String]) -> Result<(), Refusal> {
    let nvml = Nvml::kept().map_err(|error| Refusal::NoDriver { why: error.to_string() })?;
    for uuid in uuids {
        if nvml.is_partitioned(uuid) {
            return Err(Refusal::Mig { device: uuid.clone() });
        }
        if nvml.mps_clients(uuid).contains(&pid) {
            return Err(Refusal::Mps { pid });
        }
    }
    Ok(())
}

/// Returns the processes that use a device, for people.
pub(crate) fn holders(uuid: &str) -> String {
    let all = processes::gpus().map(|(devices, _)| devices).unwrap_or_default();
    let device = all.into_iter().find(|device| device.uuid.as_deref() == Some(uuid));
    device.map_or_else(|| "processes that could not be read".to_owned(), |it| it.to_string())
}
