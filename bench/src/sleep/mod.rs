//! `lowtide-bench sleep`: sleep and wake of a model's weights and its cache, beside a plain copy of
//! the same bytes in the same run.
//!
//! The work is that of `bench/peer_sleep.py`: the weights of a model with eight billion parameters are
//! kept, its cache is discarded. Each first sleep is measured in a process of its own, since nothing may
//! be prepared. Each process then does the later turns, those that wake at once last. Medians are taken
//! over all processes.

mod ahead;
mod child;
mod figures;
mod options;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use lowtide_device::headroom::HostHeadroom;
use lowtide_device::{Bytes, Device, DeviceId};

pub(crate) use self::child::run as child;
use self::child::{ChildLine, Measured, planned};
pub(crate) use self::options::Options;
use crate::model::Model;
use lowtide_cli::arguments::devices;
use lowtide_cli::program::ending::Ending;
use lowtide_cli::text::page;
use lowtide_cli::text::progress::Progress;

/// The host memory needed beside backups: random bytes, what is read back, a reserve.
const BESIDE: Bytes = Bytes::mib(640);

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let id = options.device.unwrap_or_else(devices::best);
    let processes = options.processes.unwrap_or(if id == DeviceId::Host { 1 } else { 5 });
    // A device that cannot be used is reported before any process is started. The context goes
    // before they start, since it uses device memory.
    let device = devices::open(id)?;
    let divide = options.divide.map_or_else(|| fitting(&device), Ok)?;
    drop(device);
    let options = Options { divide: Some(divide), ..options.clone() };
    let of_one = planned(divide, options.turns);
    let progress = Progress::of(Bytes(of_one.0 * u64::from(processes)));
    let mut measured = Vec::new();
    for number in 1..=processes {
        progress.say(format!("sleeping and waking on {id}, process {number} of {processes}"));
        measured.push(in_a_process(id, &options, &progress)?);
    }
    drop(progress);
    let figures = figures::merge(id, &options, measured)?;
    if options.json { page::print_json(&figures) } else { figures.text().print() }?;
    ensure!(figures.right, "a block had other bytes after a wake: this is a bug of lowtide");
    Ok(Ending::Proved)
}

// The power of two by which sizes are divided so that the work fits on the device, and the kept bytes
// twice on this machine: as backups, and for the plain copy. On `host` both are in one place.
fn fitting(device: &Device) -> anyhow::Result<u64> {
    let (id, free, left) = (device.info().id, device.usage()?.free, HostHeadroom::now().left);
    let fits = |divide: &u64| {
        let (kept, all) = (Model::kept_bytes(*divide), Model::bytes(*divide));
        if id == DeviceId::Host {
            Bytes(all.0 * 4) + BESIDE <= free.min(left)
        } else {
            Bytes(all.0 / 10 * 11) <= free && Bytes(kept.0 * 2) + BESIDE <= left
        }
    };
    (0..=12).map(|power| 1 << power).find(fits).with_context(|| {
        format!(
            "too little memory to measure with: {free} free on {id}, {left} left on this machine"
        )
    })
}

fn in_a_process(id: DeviceId, options: &Options, progress: &Progress) -> anyhow::Result<Measured> {
    let (divide, turns) = (options.divide.unwrap_or(1), options.turns);
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["sleep-child", "--device", &id.to_string()]);
    command.args(["--parent", &std::process::id().to_string()]);
    command.args(["--turns", &turns.to_string(), "--divide", &divide.to_string()]);
    command.args(options.weights.then_some("--weights"));
    command.args(options.no_packing.then_some("--no-packing"));
    command.args(options.ahead.map(|share| format!("--ahead={share}")));
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting a process")?;
    let out = BufReader::new(child.stdout.take().context("the process's output is piped")?);
    let mut measured = None;
    for line in out.lines() {
        let line = line.context("reading from a process of the bench")?;
        match serde_json::from_str(&line).with_context(|| format!("the process wrote {line:?}"))? {
            ChildLine::Done { bytes } => progress.add(bytes),
            ChildLine::Measured(all) => measured = Some(*all),
        }
    }
    let status = child.wait().context("waiting for a process of the bench")?;
    match measured {
        Some(measured) if status.success() => Ok(measured),
        _ => bail!(
            "a process of the bench ended with {status}; if memory was short, a --divide larger than \
             {divide} uses less of it"
        ),
    }
}
