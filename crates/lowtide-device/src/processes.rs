//! Device memory by process. With what no process could be named for, the rows add up to the device's
//! own number.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use lowtide_types::printable;
use serde::Serialize;

use crate::cuda::Driver;
use crate::nvml::{Nvml, ProcessMemory};
use crate::os::identity::{self, Identity};
use crate::{Bytes, Device, DeviceId, Result, Usage};

/// The number of tries to get readings that match.
const TRIES: usize = 5;
/// The number of processes that a line of text names.
const MOST_NAMED: usize = 5;

/// The memory of one device, by process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceProcesses {
    /// The device; `None` for a GPU that the CUDA driver does not show to this process.
    pub id: Option<DeviceId>,
    /// The UUID of the GPU.
    pub uuid: Option<String>,
    /// The device's report of its memory.
    #[serde(flatten)]
    pub usage: Usage,
    /// The processes that use some of it, largest first.
    pub processes: Vec<ProcessUsage>,
    /// Memory in use that was attributed to no process. Below zero where processes share memory
    /// and the driver counts it for each.
    #[serde(rename = "unattributed_bytes")]
    pub unattributed: i64,
    /// The reason why processes could not be looked for, so that an empty list says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The processes of this machine that have a `host` device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostProcesses {
    /// The processes, largest first.
    pub processes: Vec<ProcessUsage>,
    /// The number of processes that this user may not look at.
    #[serde(rename = "unreadable_processes")]
    pub unreadable: usize,
    /// The reason why processes could not be looked for, so that an empty list says nothing.
    pub reason: Option<String>,
}

/// The device memory of one process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessUsage {
    /// The PID, as the driver reports it.
    pub pid: u32,
    /// The process behind the PID.
    #[serde(flatten)]
    pub identity: Identity,
    /// The memory it uses; `None` where the driver does not report it, and then it is part of
    /// `unattributed`.
    #[serde(rename = "bytes")]
    pub held: Option<Bytes>,
}

impl DeviceProcesses {
    fn new(
        id: Option<DeviceId>,
        uuid: Option<String>,
        usage: Usage,
        mut processes: Vec<ProcessUsage>,
    ) -> DeviceProcesses {
        processes.sort_by_key(|process| std::cmp::Reverse(process.held));
        let named: Bytes = processes.iter().filter_map(|process| process.held).sum();
        DeviceProcesses {
            id,
            uuid,
            usage,
            processes,
            unattributed: signed(usage.total)
                - signed(usage.free)
                - signed(usage.reserved)
                - signed(named),
            reason: None,
        }
    }

    /// Returns the sum of all rows, which is what the device reports as not free.
    pub fn sum(&self) -> i64 {
        let named: Bytes = self.processes.iter().filter_map(|process| process.held).sum();
        signed(named) + signed(self.usage.reserved) + self.unattributed
    }
}

fn signed(size: Bytes) -> i64 {
    size.0.cast_signed()
}

fn named(uses: Vec<ProcessMemory>, mut identify: impl FnMut(u32) -> Identity) -> Vec<ProcessUsage> {
    let name = |entry: ProcessMemory| ProcessUsage {
        pid: entry.pid,
        identity: identify(entry.pid),
        held: entry.used,
    };
    uses.into_iter().map(name).collect()
}

/// Prints one line for people: `python3 (pid 123) 10,240.0 MiB, 12.0 MiB unattributed`.
impl fmt::Display for DeviceProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> =
            self.processes.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        if self.processes.len() > MOST_NAMED {
            parts.push(format!("and {} more", self.processes.len() - MOST_NAMED));
        }
        if self.unattributed > 0 {
            parts.push(format!("{} unattributed", Bytes(self.unattributed.unsigned_abs())));
        }
        match (&self.reason, parts.is_empty()) {
            (Some(reason), _) => parts.push(format!("others are not known ({reason})")),
            (None, true) => parts.push("nobody".to_owned()),
            (None, false) => {}
        }
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.identity {
            // A foreign program's name must not break the line or move the cursor.
            Identity::Known { name, .. } => printable(name),
            Identity::NotVisible
            | Identity::NoPermission
            | Identity::OtherNamespace
            | Identity::NoProc => "unknown".into(),
        };
        let held = self.held.map_or_else(|| "not told".to_owned(), |held| held.to_string());
        write!(f, "{name} (pid {}) {held}", self.pid)
    }
}

/// Returns the memory of a device by process, as it is right now. For a GPU NVML is asked. For `host`
/// the list has every process with a `host` device, beside the usage of this one: they all take pages
/// of one machine, so `unattributed` can be below zero. For `dry-run` no process is named.
///
/// # Errors
/// If NVML or the device cannot be asked.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions, processes};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
/// let _chunk = device.create(Bytes::mib(4))?;
/// println!("in use by {}", processes::of(&device)?);
/// # Ok(())
/// # }
/// ```
pub fn of(device: &Device) -> Result<DeviceProcesses> {
    let info = device.info();
    let (usage, processes, reason) = match (&info.uuid, info.id) {
        (Some(uuid), _) => {
            let nvml = Nvml::kept()?;
            let (usage, uses) = together(&nvml, uuid)?;
            (usage, named(uses, identity::of_driver_pid), None)
        }
        (None, DeviceId::Host) => {
            // Other processes have budgets of their own.
            let HostProcesses { mut processes, reason, .. } = host();
            processes.retain(|process| process.pid == std::process::id());
            (device.usage()?, processes, reason)
        }
        (None, _) => (device.usage()?, Vec::new(), None),
    };
    let all = DeviceProcesses::new(Some(info.id), info.uuid.clone(), usage, processes);
    Ok(DeviceProcesses { reason, ..all })
}

/// Returns the memory of every GPU of this machine by process, and one message for each GPU that could
/// not be read. Asks NVML and creates no context.
///
/// # Errors
/// [`crate::Error::NoLibrary`] where there is no NVML, or NVML's error for the machine as a whole.
pub fn gpus() -> Result<(Vec<DeviceProcesses>, Vec<String>)> {
    Gpus::find()?.read(identity::of_driver_pid)
}

/// The GPUs of this machine, to be read again and again: what stays the same is asked once.
pub struct Gpus {
    nvml: Arc<Nvml>,
    /// The UUIDs of the GPUs that CUDA shows, by its index; `None` for a GPU that does not answer.
    shown: Vec<Option<String>>,
}

impl Gpus {
    /// Finds the GPUs.
    ///
    /// # Errors
    /// As [`gpus`].
    pub fn find() -> Result<Gpus> {
        Ok(Gpus { nvml: Nvml::kept()?, shown: visible_uuids() })
    }

    /// Reads them as [`gpus`] does. `identify` says what a process is that the driver reported.
    ///
    /// # Errors
    /// As [`gpus`].
    pub fn read(
        &self,
        mut identify: impl FnMut(u32) -> Identity,
    ) -> Result<(Vec<DeviceProcesses>, Vec<String>)> {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for uuid in self.nvml.uuids()? {
            match together(&self.nvml, &uuid) {
                Ok((usage, uses)) => {
                    let is_it = |shown: &Option<String>| shown.as_ref() == Some(&uuid);
                    let index = self.shown.iter().position(is_it);
                    let id = index.map(|index| DeviceId::Cuda(index as u32));
                    let uses = named(uses, &mut identify);
                    found.push(DeviceProcesses::new(id, Some(uuid), usage, uses));
                }
                Err(error) => problems.push(format!("{uuid}: {error}")),
            }
        }
        Ok((found, problems))
    }
}

// Readings from different moments would leave a difference that no process uses.
fn together(nvml: &Nvml, uuid: &str) -> Result<(Usage, Vec<ProcessMemory>)> {
    let mut before = nvml.usage(uuid)?;
    for _ in 1..TRIES {
        let uses = nvml.processes(uuid)?;
        let after = nvml.usage(uuid)?;
        if before == after {
            return Ok((after, uses));
        }
        before = after;
    }
    Ok((before, nvml.processes(uuid)?))
}

fn visible_uuids() -> Vec<Option<String>> {
    let Ok(driver) = Driver::load() else { return Vec::new() };
    let count = driver.device_count().unwrap_or(0);
    (0..count).map(|index| driver.card(index).ok().map(|card| card.uuid)).collect()
}

/// Returns the processes of this machine that have a `host` device, with what each uses.
pub fn host() -> HostProcesses {
    if let Some(reason) = identity::why_unreadable() {
        return HostProcesses { processes: Vec::new(), unreadable: 0, reason: Some(reason) };
    }
    let mut by_pid: BTreeMap<u32, Bytes> = BTreeMap::new();
    let mut seen = std::collections::HashSet::new();
    let (mut unreadable, mut reason) = (0, None);
    let entries = fs::read_dir("/proc").inspect_err(|error| {
        reason = Some(format!("/proc cannot be listed: {error}"));
    });
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        let open = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(open) => open,
            Err(error) => {
                unreadable += usize::from(error.kind() == ErrorKind::PermissionDenied);
                continue;
            }
        };
        for entry in open.filter_map(Result::ok) {
            let is_ours = fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:lowtide-host"));
            let Some(file) = is_ours.then(|| fs::metadata(entry.path()).ok()).flatten() else {
                continue;
            };
            // A forked child has the parent's file open too; it counts once, for the elder.
            if seen.insert((file.dev(), file.ino())) {
                *by_pid.entry(pid).or_default() += Bytes(file.blocks() * 512);
            }
        }
    }
    let usage =
        |(pid, held)| ProcessUsage { pid, identity: identity::of_own_pid(pid), held: Some(held) };
    let mut processes: Vec<_> = by_pid.into_iter().map(usage).collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.held));
    HostProcesses { processes, unreadable, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn usage() -> Usage {
        let (total, free, reserved) = (Bytes(1000), Bytes(400), Bytes(50));
        Usage { total, free, reserved, source: Source::Nvml }
    }

    #[test]
    fn rows_add_up_to_what_is_not_free() {
        let uses = vec![
            ProcessMemory { pid: 1, used: Some(Bytes(100)) },
            ProcessMemory { pid: 2, used: None },
            ProcessMemory { pid: 3, used: Some(Bytes(300)) },
        ];
        let all = DeviceProcesses::new(None, None, usage(), named(uses, identity::of_driver_pid));
        assert_eq!(all.unattributed, 150);
        assert_eq!(all.sum(), 600);
        assert_eq!(all.processes[0].pid, 3, "largest first");
    }

    #[test]
    fn memory_counted_twice_is_shown_as_such() {
        let uses = vec![ProcessMemory { pid: 1, used: Some(Bytes(700)) }];
        let all = DeviceProcesses::new(None, None, usage(), named(uses, identity::of_driver_pid));
        assert_eq!(all.unattributed, -150);
        assert_eq!(all.sum(), 600);
    }

    #[test]
    fn a_host_device_of_this_process_is_found() {
        let options = crate::HostOptions { budget: Some(Bytes::mib(8)), small_pages: true };
        let device = crate::Device::host(options).unwrap();
        let _chunk = device.create(Bytes::mib(6)).unwrap();
        let all = host();
        let own = all.processes.iter().find(|process| process.pid == std::process::id()).unwrap();
        assert!(own.held.unwrap() >= Bytes::mib(6));
    }

    #[test]
    fn a_line_names_the_largest_and_counts_the_rest() {
        let usage = |in_use| {
            let (total, reserved) = (Bytes::gib(100), Bytes::ZERO);
            Usage { total, free: total - in_use, reserved, source: Source::Nvml }
        };
        let process = |pid, name: &str, held| {
            let identity = Identity::Known { name: name.to_owned(), command: String::new() };
            ProcessUsage { pid, identity, held }
        };
        let line = |in_use, processes| {
            DeviceProcesses::new(None, None, usage(in_use), processes).to_string()
        };
        assert_eq!(
            line(
                Bytes::mib(10_263),
                vec![
                    ProcessUsage { pid: 9, identity: Identity::NotVisible, held: None },
                    process(77, "triton\u{1b}\nserver", Some(Bytes::mib(11))),
                    process(123, "python3", Some(Bytes::gib(10))),
                ]
            ),
            "python3 (pid 123) 10,240.0 MiB, triton\\u{1b}\\nserver (pid 77) 11.0 MiB, \
             unknown (pid 9) not told, 12.0 MiB unattributed"
        );
        let many = (1..=7).map(|pid| process(pid, "a", Some(Bytes::mib(1)))).collect();
        let text = line(Bytes::mib(7), many);
        assert!(text.ends_with("a (pid 5) 1.0 MiB, and 2 more"), "{text}");
        assert_eq!(line(Bytes::ZERO, Vec::new()), "nobody");
        let unread = DeviceProcesses {
            reason: Some("/proc cannot be read".to_owned()),
            ..DeviceProcesses::new(None, None, usage(Bytes::ZERO), Vec::new())
        };
        assert_eq!(unread.to_string(), "others are not known (/proc cannot be read)");
        let (dry_run, _) = Device::dry_run(Bytes::mib(8));
        assert_eq!(of(&dry_run).unwrap().to_string(), "nobody");
    }
}
