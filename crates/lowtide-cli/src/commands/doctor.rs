//! `lowtide doctor`: what this machine can do.

use lowtide_device::survey::{self, Library, Survey, Surveyed};
use lowtide_device::{Bytes, Device, DeviceId, Error};
use serde::Serialize;

use lowtide_release::floor::Floor;

use crate::floor;
use crate::measure::{self, Measured};
use crate::page::{self, Page};
use crate::progress;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The floor is what a bare context costs on a GPU: a disposable child holds one while the driver's \
                  number is read. It is remembered per device and driver, in lowtide/floor.json under \
                  $XDG_CACHE_HOME or ~/.cache.\n\n\
                  A machine without a GPU is an ordinary machine: exit code 0, and `host` can be used."
)]
pub(crate) struct Options {
    /// Look at this device only: host, cuda:0, …
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// Measure the link's speed each way, the digest's, and how fast host memory is prepared.
    #[arg(long)]
    measure: bool,
    /// Measure the floor anew, even if it is remembered.
    #[arg(long)]
    measure_floor: bool,
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
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
    /// Why there is no floor, where there is none.
    floor_reason: Option<String>,
    measured: Option<Measured>,
    /// Why there are no speeds, where they were asked for.
    measured_reason: Option<String>,
    #[serde(skip)]
    floor_is_fresh: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Survey { mut devices, problems, cuda, nvml } = survey::survey();
    if let Some(wanted) = options.device {
        let known = devices.iter().map(|device| device.info.id).collect();
        devices.retain(|device| device.info.id == wanted);
        if devices.is_empty() {
            let unknown = anyhow::Error::new(Error::UnknownDevice { wanted, known });
            return Err(match cuda.reason {
                Some(reason) if wanted != DeviceId::Host => unknown.context(reason),
                _ => unknown,
            });
        }
    }
    let driver = nvml.version.clone().or_else(|| cuda.version.clone()).unwrap_or_default();
    let devices = devices.into_iter().map(|device| examine(device, &driver, options)).collect();
    let report = Report { lowtide: env!("CARGO_PKG_VERSION"), devices, problems, cuda, nvml };
    if options.json { page::print_json(&report) } else { text(&report).print() }
}

fn examine(mut device: Surveyed, driver: &str, options: &Options) -> DeviceReport {
    let id = device.info.id;
    let floor = match id {
        // A `host` device has no context: nothing is held before the first chunk.
        DeviceId::Host | DeviceId::DryRun | DeviceId::Named(_) => Ok(None),
        DeviceId::Cuda(_) => {
            let spinner = progress::spinner(format!("measuring the floor of {id}"));
            let floor = floor::of(&device, driver, options.measure_floor).map(Some);
            spinner.finish_and_clear();
            floor
        }
    };
    let measure = || measure::measure(&Device::open(id)?);
    let (measured, measured_reason) = match options.measure.then(measure) {
        None => (None, None),
        Some(Ok(measured)) => (Some(measured), None),
        Some(Err(error)) => (None, Some(format!("{error:#}"))),
    };
    let (floor_bytes, floor_reason, floor_is_fresh) = match floor {
        Ok(None) => (Some(Bytes::ZERO), None, false),
        Ok(Some((floor, is_fresh))) => {
            note_trial(&mut device, &floor);
            (Some(floor.bytes), None, is_fresh)
        }
        Err(error) => (None, Some(format!("{error:#}")), false),
    };
    DeviceReport { device, floor_bytes, floor_reason, measured, measured_reason, floor_is_fresh }
}

// The child tried everything once: what it saw counts for more than what the driver announces.
fn note_trial(device: &mut Surveyed, floor: &Floor) {
    let Some(capability) = device.capabilities.get_mut("virtual_memory") else { return };
    match &floor.trial_failure {
        None => "a page was reserved, created, mapped, digested, copied out and back"
            .clone_into(&mut capability.detail),
        Some(failure) => {
            capability.works = false;
            capability.detail = format!("tried, and failed: {failure}");
            capability.advice = Some(
                "`lowtide ps` shows who else uses the device; LOWTIDE_LOG=debug shows more"
                    .to_owned(),
            );
        }
    }
}

fn text(report: &Report) -> Page {
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
        None => format!("{} in all; NVML does not say how much is in use", info.total),
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
            "0.0 MiB: no context is needed".to_owned()
        }
        (Some(floor), _) if report.floor_is_fresh => {
            format!("{floor}: what a bare context costs (measured now)")
        }
        (Some(floor), _) => format!(
            "{floor}: what a bare context costs (remembered; --measure-floor measures anew)"
        ),
        (None, reason) => format!("unknown: {}", reason.as_deref().unwrap_or("not measured")),
    }
}

fn measured_rows(page: &mut Page, measured: &Measured) {
    let Measured { size_bytes, turns, .. } = measured;
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
            "prepared at {:.1} GiB/s (the first time {:.1} GiB/s)",
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
