//! `lowtide replay`: what the pool makes of an allocation trace.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Context;
use lowtide_device::{Bytes, Device, DeviceId};
use lowtide_pool::replay::{self, Fit, Report};
use lowtide_pool::{Policy, trace};
use serde::Serialize;

use crate::page::{self, Page};
use crate::progress;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace is a CSV in the format of RMM's log: Thread,Time,Action,Pointer,Size,Stream. \
                  bench/traces.py makes four.\n\n\
                  Without --device the trace runs on a device that only keeps books, so it may be larger than \
                  any machine; driver_ms is then what the calls take on an H200 (measured per handle)."
)]
pub(crate) struct Options {
    /// The trace.
    trace: PathBuf,
    /// Run it on a real device: host, cuda:0, …
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// How much memory the books have.
    #[arg(long, value_name = "SIZE", default_value = "1TiB", conflicts_with = "device")]
    memory: Bytes,
    /// Also find the least memory in which the trace completes (on books).
    #[arg(long)]
    fit: bool,
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    report: Report,
    #[serde(flatten)]
    fit: Option<Fit>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let name = options.trace.display();
    let file = File::open(&options.trace).with_context(|| format!("opening {name}"))?;
    let events = trace::read(BufReader::new(file)).with_context(|| format!("reading {name}"))?;
    let (device, tally) = if let Some(id) = options.device {
        (Device::open(id)?, None)
    } else {
        let (device, tally) = Device::books(options.memory);
        (device, Some(tally))
    };
    let report = replay::replay(&events, &device, tally.as_deref(), Policy::default())?;
    let fit = options.fit.then(|| {
        let spinner = progress::spinner("looking for the least memory in which it completes");
        let fit = replay::fit(&events, Policy::default(), || spinner.inc(1));
        spinner.finish_and_clear();
        fit
    });
    let answer = Answer { report, fit: fit.transpose()? };
    if options.json { page::print_json(&answer) } else { text(&answer).print() }
}

fn text(answer: &Answer) -> Page {
    let Report { events, live_peak_bytes, physical_peak_bytes, ratio, ns_per_op, .. } =
        &answer.report;
    let mut page = Page::default();
    page.row("events", &events.to_string());
    page.row("live peak", &live_peak_bytes.to_string());
    page.row("physical peak", &format!("{physical_peak_bytes}: {ratio:.4} of it"));
    if let Some(Fit { fit_bytes, fit_ratio }) = &answer.fit {
        page.row("fits in", &format!("{fit_bytes}: {fit_ratio:.4} of it"));
    }
    page.row("time", &format!("{ns_per_op:.0} ns for an event"));
    if let (Some(calls), Some(ms)) = (answer.report.driver_calls, answer.report.driver_ms) {
        page.row("driver", &format!("{calls} calls, {ms:.1} ms as an H200 takes for them"));
    }
    page
}
