//! A survey of this machine: its devices, what works on each, what does not, and what to do about it.
//! Creates no context.

use std::collections::BTreeMap;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::backend::{DeviceInfo, DeviceKind};
use crate::cuda::{Card, Driver};
use crate::facts::Attempt;
use crate::nvml::Nvml;
use crate::os::yama::PtraceScope;
use crate::os::{identity, memory};
use crate::{Bytes, DeviceId, Error, Result, Usage, host};

/// The compute capability that the digest's PTX is compiled for.
const LEAST_COMPUTE_CAPABILITY: (i32, i32) = (7, 5);

/// The result of a survey.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// The devices that answered, `host` last.
    pub devices: Vec<Surveyed>,
    /// A message for each GPU that is there but did not answer.
    pub problems: Vec<String>,
    /// The state of the CUDA driver.
    pub cuda: Library,
    /// The state of NVML.
    pub nvml: Library,
}

/// The state of a driver library: found or not.
#[derive(Debug, Clone, Serialize)]
pub struct Library {
    /// True if the library can be used.
    pub available: bool,
    /// The version, if it can be used.
    pub version: Option<String>,
    /// Every name tried, in order.
    pub tried: Vec<Attempt>,
    /// The reason why it cannot be used.
    pub reason: Option<String>,
}

/// A device and what works on it.
#[derive(Debug, Clone, Serialize)]
pub struct Surveyed {
    /// The description of the device.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// The compute capability of a GPU, such as `9.0`.
    pub compute_capability: Option<String>,
    /// The memory in use, if it can be read without a context.
    pub usage: Option<Usage>,
    /// The capabilities of the device, by name.
    pub capabilities: BTreeMap<&'static str, Capability>,
}

/// Something that works on a device or does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// True if it works.
    pub works: bool,
    /// The evidence, with numbers.
    pub detail: String,
    /// The way to make it work, if there is one.
    pub advice: Option<String>,
}

impl Capability {
    fn yes(detail: impl Into<String>) -> Capability {
        Capability { works: true, detail: detail.into(), advice: None }
    }

    fn no(detail: impl Into<String>, advice: impl Into<String>) -> Capability {
        Capability { works: false, detail: detail.into(), advice: Some(advice.into()) }
    }
}

/// Surveys this machine.
///
/// ```
/// use lowtide_device::survey::survey;
///
/// for device in survey().devices {
///     println!("{}: {}", device.info.id, device.info.name);
/// }
/// ```
pub fn survey() -> Survey {
    let (driver_tried, driver) = Driver::look_up();
    let (nvml_tried, nvml) = Nvml::look_up();
    let version = |driver: &Driver| driver.version().to_string();
    let mut cuda = library(driver_tried, driver.as_ref().map(version));
    let (mut devices, problems) = match &driver {
        Ok(driver) => cards(driver, nvml.as_ref().ok()),
        Err(_) => Default::default(),
    };
    if cuda.available && devices.is_empty() {
        let none = "the driver shows no GPU; check CUDA_VISIBLE_DEVICES".to_owned();
        cuda.available = false;
        cuda.reason = Some(problems.first().cloned().unwrap_or(none));
    }
    devices.push(host());
    let version = nvml.as_ref().map(|nvml| nvml.driver_version().unwrap_or_default());
    Survey { devices, problems, cuda, nvml: library(nvml_tried, version) }
}

fn library(tried: Vec<Attempt>, version: Result<String, &Error>) -> Library {
    let reason = version.as_ref().err().map(ToString::to_string);
    Library { available: reason.is_none(), version: version.ok(), tried, reason }
}

// A GPU that does not answer does not hide the others.
fn cards(driver: &Driver, nvml: Option<&Nvml>) -> (Vec<Surveyed>, Vec<String>) {
    let count = match driver.device_count() {
        Ok(count) => count,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for index in 0..count {
        match driver.card(index) {
            Ok(card) => found.push(surveyed(index, card, driver, nvml)),
            Err(error) => problems.push(error.to_string()),
        }
    }
    (found, problems)
}

fn surveyed(index: u32, card: Card, driver: &Driver, nvml: Option<&Nvml>) -> Surveyed {
    let usage = nvml.and_then(|nvml| nvml.usage(&card.uuid).ok());
    let capabilities = BTreeMap::from([
        ("virtual_memory", virtual_memory(&card)),
        ("digest", digest(&card)),
        ("suspend", suspend(driver)),
        ("per_process", per_process(nvml, &card)),
        ("huge_pages", huge_pages_for_backups()),
        ("locked_memory", locked_memory()),
    ]);
    let (major, minor) = card.compute_capability;
    Surveyed {
        info: DeviceInfo {
            id: DeviceId::Cuda(index),
            kind: DeviceKind::Cuda,
            name: card.name,
            // NVML's total includes what the driver reserves; all sums refer to it.
            total: usage.map_or(card.total, |usage| usage.total),
            page: card.page,
            uuid: Some(card.uuid),
        },
        compute_capability: Some(format!("{major}.{minor}")),
        usage,
        capabilities,
    }
}

fn host() -> Surveyed {
    let chunks = if host::chunks_are_huge() {
        Capability::yes("a chunk was created and the kernel backed it with a 2 MiB page")
    } else {
        Capability::no(
            "the kernel backs chunks with 4 KiB pages: slower, but everything works",
            "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or use Linux 6.1 or newer",
        )
    };
    let capabilities = BTreeMap::from([
        ("virtual_memory", Capability::yes("reservations and chunks are pages of this machine")),
        ("digest", Capability::yes("computed by this machine's processor")),
        (
            "suspend",
            Capability::no(
                "host memory belongs to its process",
                "end the process to free all of it",
            ),
        ),
        ("per_process", Capability::yes("the kernel reports the memory of each process's device")),
        ("huge_pages", chunks),
        ("locked_memory", locked_memory()),
    ]);
    let info = host::default_info();
    Surveyed { info, compute_capability: None, usage: None, capabilities }
}

fn virtual_memory(card: &Card) -> Capability {
    if card.virtual_memory {
        return Capability::yes("the driver reserves addresses and maps memory to them");
    }
    Capability::no(
        "the driver offers no virtual memory management on this GPU",
        "use a GPU and driver that do",
    )
}

fn digest(card: &Card) -> Capability {
    let (major, minor) = card.compute_capability;
    if card.compute_capability >= LEAST_COMPUTE_CAPABILITY {
        return Capability::yes(format!(
            "compute capability {major}.{minor}, 7.5 or newer is needed"
        ));
    }
    let detail = format!("compute capability {major}.{minor}; the kernel needs 7.5");
    Capability::no(detail, "use a GPU of the Turing generation or newer")
}

fn suspend(driver: &Driver) -> Capability {
    if cfg!(not(target_os = "linux")) {
        return Capability::no("the driver checkpoints processes on Linux only", "use Linux");
    }
    match driver.checkpoint() {
        Ok(_) => tracing(PtraceScope::now()),
        Err(Error::MissingEntryPoint { name, since, .. }) => Capability::no(
            format!("the driver has no {name}; it has CUDA {}", driver.version()),
            format!("install driver {} or newer", since.driver_release()),
        ),
        Err(error) => Capability::no(error.to_string(), "install another driver"),
    }
}

// The driver attaches to the process it checkpoints, which Yama may forbid.
fn tracing(scope: PtraceScope) -> Capability {
    let has = "the driver has the checkpoint calls";
    match scope {
        PtraceScope::Everybody => Capability::yes(format!("{has}; own processes may be suspended")),
        PtraceScope::Named => Capability {
            works: true,
            detail: format!(
                "{has}; Yama's ptrace_scope is 1: only children, and processes that name the helper"
            ),
            advice: Some("as root: sysctl kernel.yama.ptrace_scope=0 lifts that".to_owned()),
        },
        PtraceScope::Root => Capability::no(
            format!("{has}, but Yama's ptrace_scope is 2: only root may attach to a process"),
            "run as root, or as root: sysctl kernel.yama.ptrace_scope=0",
        ),
        PtraceScope::Nobody => Capability::no(
            format!("{has}, but Yama's ptrace_scope is 3: nobody may attach to a process"),
            "set kernel.yama.ptrace_scope to 0 and restart the machine: it cannot be lowered before",
        ),
    }
}

fn per_process(nvml: Option<&Nvml>, card: &Card) -> Capability {
    let Some(nvml) = nvml else {
        return Capability::no(
            "NVML is not installed",
            "install it with the driver, or set LOWTIDE_NVML_LIBRARY",
        );
    };
    match nvml.processes(&card.uuid) {
        Err(error) => {
            Capability::no(error.to_string(), "none; `ps` shows all of it as unattributed")
        }
        Ok(processes) if processes.iter().any(|entry| entry.used.is_none()) => Capability::no(
            "the driver lists processes without their memory",
            "`ps` shows it as unattributed",
        ),
        Ok(_) if !identity::sees_driver_pids() => Capability {
            works: true,
            detail:
                "this process is in a PID namespace of its own; the driver may report PIDs of another"
                    .to_owned(),
            advice: Some(
                "start the container with --pid=host to see names for all of them".to_owned(),
            ),
        },
        Ok(processes) => {
            Capability::yes(format!("NVML reports the memory of each process ({} now)", processes.len()))
        }
    }
}

fn huge_pages_for_backups() -> Capability {
    match memory::huge_page_setting().as_deref() {
        Some(setting @ ("always" | "madvise")) => Capability::yes(format!(
            "transparent huge pages are on ({setting}): backups prepare fast"
        )),
        setting => Capability::no(
            format!(
                "transparent huge pages are {}: backups prepare at half the speed",
                setting.unwrap_or("absent")
            ),
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

fn locked_memory() -> Capability {
    match getrlimit(Resource::Memlock).current {
        None => Capability::yes("no limit"),
        Some(bytes) => Capability::yes(format!(
            "limit {}; lowtide locks no pages itself, the driver pins what is registered",
            Bytes(bytes)
        )),
    }
}
