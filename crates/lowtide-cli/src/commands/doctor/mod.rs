//! `lowtide doctor`: what this machine can do.

mod measure;

use anyhow::bail;
use lowtide_device::survey::{self, Library, Survey, Surveyed};
use lowtide_device::{Bytes, DeviceId};
use lowtide_release::floor::Floor;
use serde::Serialize;

use self::measure::Speeds;
use crate::arguments::devices::{self, MissingDevice};
use crate::commands::floor::{self, CurrentFloor};
use crate::commands::suspend_trial;
use crate::program::ending::Ending;
use crate::text::page::{self, Page};
use crate::text::progress;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The floor is the device memory that a bare context uses. A child process creates one while the \
                  driver's number for it is read. The result is stored per device and driver, in lowtide/floor.json \
                  under $XDG_CACHE_HOME or ~/.cache, in a folder that only this user can open. If the driver does \
                  not report the memory of processes, the difference of the device's numbers is shown and not \
                  stored.\n\n\
                  For `suspend`, a helper of this user takes a disposable process off the device and brings it back.\n\n\
                  Ends with 0 on a machine without a GPU (`host` can be used there), and with 3 if the device named \
                  with --device is missing or --require is not met."
)]
pub(crate) struct Options {
    /// Show this device only: host, cuda:0, …
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    device: Option<DeviceId>,
    /// Measure the speed of copies in each direction, of digests, and of preparing host memory.
    #[arg(long)]
    measure: bool,
    /// Measure the floor again, even if a result is stored.
    #[arg(long)]
    measure_floor: bool,
    /// End with 3 unless some device can do this: for probes of a container or a job. `cuda` is allocating memory that
    /// can sleep, tried; `suspend` is taking a process off the device and back, tried.
    #[arg(long, value_name = "WHAT")]
    require: Option<Requirement>,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

/// What a probe asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Requirement {
    Cuda,
    Suspend,
}

impl Requirement {
    /// Returns the names of the requirement and of the capability that it is.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Requirement::Cuda => ("cuda", "virtual_memory"),
            Requirement::Suspend => ("suspend", "suspend"),
        }
    }
}

#[derive(Serialize)]
struct MachineReport {
    lowtide: &'static str,
    devices: Vec<DeviceReport>,
    problems: Vec<String>,
    cuda: Library,
    nvml: Library,
}

#[derive(Serialize)]
struct DeviceReport {
    #[serde(flatten)]
    device: Surveyed,
    floor_bytes: Option<Bytes>,
    /// The reason why there is no floor.
    floor_reason: Option<String>,
    /// The number that the floor was taken from.
    floor_from: Option<floor::FloorSource>,
    measured: Option<Speeds>,
    /// The reason why there are no speeds, although they were asked for.
    measured_reason: Option<String>,
    #[serde(skip)]
    floor_is_fresh: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let Survey { mut devices, problems, cuda, nvml } = survey::survey();
    if let Some(wanted) = options.device {
        let known = devices.iter().map(|device| device.info.id).collect();
        devices.retain(|device| device.info.id == wanted);
        if devices.is_empty() {
            return Err(MissingDevice { wanted, known, reason: cuda.reason }.into());
        }
    }
    let driver = nvml.version.clone().unwrap_or_default();
    let devices = devices.into_iter().map(|device| examine(device, &driver, options)).collect();
    let report =
        MachineReport { lowtide: env!("CARGO_PKG_VERSION"), devices, problems, cuda, nvml };
    if options.json { page::print_json(&report) } else { text(&report).print() }?;
    options.require.map_or(Ok(()), |required| check(&report, required))?;
    Ok(Ending::Proved)
}

/// Checks that some GPU can do what is required.
///
/// # Errors
/// The reason why none can.
fn check(report: &MachineReport, required: Requirement) -> anyhow::Result<()> {
    let (name, capability) = required.names();
    let mut why = report.cuda.reason.clone();
    for device in report.devices.iter().filter(|it| matches!(it.device.info.id, DeviceId::Cuda(_)))
    {
        match device.device.capabilities.get(capability) {
            Some(found) if found.works => return Ok(()),
            Some(found) => why = Some(format!("{}: {}", device.device.info.id, found.detail)),
            None => {}
        }
    }
    let why = why.or_else(|| report.problems.first().cloned());
    bail!(
        "no device can do what --require {name} asks for: {}",
        why.unwrap_or_else(|| "there is no GPU".to_owned())
    )
}

fn examine(device: Surveyed, driver: &str, options: &Options) -> DeviceReport {
    let id = device.info.id;
    let floor = match id {
        // A `host` device has no context: it uses nothing before the first chunk.
        DeviceId::Host | DeviceId::DryRun | DeviceId::Named(_) => Ok(None),
        DeviceId::Cuda(_) => {
            let spinner = progress::spinner(format!("measuring the floor of {id}"));
            let floor = floor::of(&device, driver, options.measure_floor).map(Some);
            spinner.finish_and_clear();
            floor
        }
    };
    let measure = || measure::measure(&devices::open(id)?);
    let (measured, measured_reason) = match options.measure.then(measure) {
        None => (None, None),
        Some(Ok(measured)) => (Some(measured), None),
        Some(Err(error)) => (None, Some(format!("{error:#}"))),
    };
    let mut report = DeviceReport {
        device,
        floor_bytes: None,
        floor_reason: None,
        floor_from: None,
        measured,
        measured_reason,
        floor_is_fresh: false,
    };
    // A probe that does not ask for it does not pay for it.
    if options.require == Some(Requirement::Cuda) {
        report.device.capabilities.remove("suspend");
    }
    if matches!(id, DeviceId::Cuda(_))
        && let Some(capability) = report.device.capabilities.get_mut("suspend")
    {
        let spinner = progress::spinner(format!("suspending a process on {id}"));
        suspend_trial::note(capability, id);
        spinner.finish_and_clear();
    }
    match floor {
        Ok(None) => report.floor_bytes = Some(Bytes::ZERO),
        Ok(Some(CurrentFloor { floor, from, is_fresh })) => {
            note_trial(&mut report.device, &floor);
            report.floor_bytes = Some(floor.bytes);
            (report.floor_from, report.floor_is_fresh) = (Some(from), is_fresh);
        }
        Err(error) => report.floor_reason = Some(format!("{error:#}")),
    }
    report
}

// The child tried every operation once. That counts for more than what the driver announces.
fn note_trial(device: &mut Surveyed, floor: &Floor) {
    let Some(capability) = device.capabilities.get_mut("virtual_memory") else { return };
    match &floor.trial_failure {
        None => "a page was reserved, created, mapped, digested, copied out and back"
            .clone_into(&mut capability.detail),
        Some(failure) => {
            capability.works = false;
            capability.detail = format!("tried, and failed: {failure}");
            capability.advice = Some(
                "`lowtide ps` shows what else uses the device; LOWTIDE_LOG=debug shows more"
                    .to_owned(),
            );
        }
    }
}

fn text(report: &MachineReport) -> Page {
    let mut page = Page::default();
    for report in &report.devices {
        device(&mut page, report);
        page.blank();
    }
    for problem in &report.problems {
        page.row("a GPU", problem);
    }
    library(&mut page, "CUDA driver", &report.cuda);
    library(&mut page, "NVML", &report.nvml);
    page
}

fn device(page: &mut Page, report: &DeviceReport) {
    let Surveyed { info, compute_capability, usage, capabilities } = &report.device;
    page.title(&info.id.to_string(), &info.name);
    let memory = match usage {
        Some(usage) => format!(
            "{} in all: {} in use, {} free, {} reserved by the driver",
            info.total,
            usage.in_use(),
            usage.free,
            usage.reserved
        ),
        None if info.id == DeviceId::Host => format!("{} (its budget)", info.total),
        None => format!("{} in all; NVML does not report how much is in use", info.total),
    };
    page.row("memory", &memory);
    page.row("page", &info.page.to_string());
    if let Some(capability) = compute_capability {
        page.row("compute", capability);
    }
    page.row("floor", &floor_text(report));
    for (name, capability) in capabilities {
        page.verdict(
            &name.replace('_', " "),
            capability.works,
            &capability.detail,
            capability.advice.as_deref(),
        );
    }
    if let Some(measured) = &report.measured {
        measured_rows(page, measured);
    }
    if let Some(reason) = &report.measured_reason {
        page.row("not measured", reason);
    }
}

fn floor_text(report: &DeviceReport) -> String {
    match (report.floor_bytes, &report.floor_reason) {
        (Some(_), _) if report.device.info.id == DeviceId::Host => {
            "0.0 MiB (no context is needed)".to_owned()
        }
        (Some(floor), _) if report.floor_from == Some(floor::FloorSource::Difference) => format!(
            "about {floor} for a bare context (measured now and not stored: the driver reports no memory of \
             processes, so other processes may be part of it)"
        ),
        (Some(floor), _) if report.floor_is_fresh => {
            format!("{floor} for a bare context (measured now)")
        }
        (Some(floor), _) => {
            format!("{floor} for a bare context (stored; --measure-floor measures it again)")
        }
        (None, reason) => format!("unknown: {}", reason.as_deref().unwrap_or("not measured")),
    }
}

fn measured_rows(page: &mut Page, measured: &Speeds) {
    let Speeds { size_bytes, turns, .. } = measured;
    page.row(
        "link out",
        &format!(
            "{:.1} GiB/s (device to host, {size_bytes}, median of {turns})",
            measured.link_out_gib_s
        ),
    );
    page.row("link in", &format!("{:.1} GiB/s (host to device)", measured.link_in_gib_s));
    page.row("digest speed", &format!("{:.0} GiB/s", measured.digest_gib_s));
    page.row(
        "host memory",
        &format!(
            "prepared at {:.1} GiB/s ({:.1} GiB/s the first time)",
            measured.prepare_gib_s, measured.prepare_first_gib_s
        ),
    );
}

fn library(page: &mut Page, name: &str, library: &Library) {
    let used = library.tried.iter().find(|attempt| attempt.failure.is_none());
    if let (true, Some(used)) = (library.available, used) {
        page.row(
            name,
            &format!("{} ({})", library.version.as_deref().unwrap_or("version unknown"), used.name),
        );
        return;
    }
    page.row(name, &format!("not usable: {}", library.reason.as_deref().unwrap_or("unknown")));
}
