//! `lowtide replay`: what the pool makes of an allocation trace.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::Context;
use lowtide_device::{Bytes, Device, DeviceId};
use lowtide_pool::replay::{self, Fit, Report};
use lowtide_pool::{Policy, Recording, trace};
use serde::Serialize;

use crate::page::{self, Page};
use crate::progress;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace is a CSV in the format of RMM's log: Thread,Time,Action,Pointer,Size,Stream. \
                  bench/traces.py makes four.\n\n\
                  Without --device the trace runs as a dry run, on a device without memory, so it may be larger than \
                  any machine; driver_ms is then what the calls take on an H200 (measured per handle).\n\n\
                  With --threads the order of events is this run's and not the trace's, so two runs differ, and \
                  the live peak is what the pool counted, in multiples of 512 bytes. With --streams and one \
                  thread every run is the same: a stream has passed once nothing was freed on it for 64 events, \
                  or when the pool waited for it."
)]
pub(crate) struct Options {
    /// The trace.
    trace: PathBuf,
    /// Run it on a real device: host, cuda:0, …
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// The memory of the dry run's device.
    #[arg(long, value_name = "SIZE", default_value = "1TiB", conflicts_with = "device")]
    memory: Bytes,
    /// Deal the blocks over so many streams, which hold back what was freed on them.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Deal the blocks over so many threads, which play at the same time on one pool.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Save what the pool was asked, as another trace; the time includes that.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Also find the least memory in which the trace completes (in a dry run, in the trace's order).
    #[arg(long, conflicts_with_all = ["streams", "threads"])]
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
        let (device, tally) = Device::dry_run(options.memory);
        (device, Some(tally))
    };
    let play = replay::Options {
        streams: options.streams,
        threads: options.threads,
        record: options.record.is_some(),
    };
    let report = replay::replay(&events, &device, tally.as_deref(), Policy::default(), play)?;
    if let (Some(file), Some(recording)) = (&options.record, &report.recording) {
        save(recording, file)?;
    }
    let fit = options.fit.then(|| {
        let spinner = progress::spinner("looking for the least memory in which it completes");
        let fit = replay::fit(&events, Policy::default(), || spinner.inc(1));
        spinner.finish_and_clear();
        fit
    });
    let answer = Answer { report, fit: fit.transpose()? };
    if options.json { page::print_json(&answer) } else { text(&answer).print() }
}

/// Writes a recording to a file.
pub(crate) fn save(recording: &Recording, to: &Path) -> anyhow::Result<()> {
    let write = || recording.write_to(BufWriter::new(File::create(to)?));
    write().with_context(|| format!("writing {}", to.display()))
}

fn text(answer: &Answer) -> Page {
    let Report { events, streams, threads, live_peak_bytes, physical_peak_bytes, .. } =
        &answer.report;
    let Report { ratio, ns_per_op, driver_calls, driver_ms, .. } = &answer.report;
    let mut page = Page::default();
    page.row("events", &events.to_string());
    if (*streams, *threads) != (1, 1) {
        page.row("dealt over", &format!("streams: {streams}, threads: {threads}"));
    }
    let counted = if *threads > 1 { ", as the pool counted it" } else { "" };
    page.row("live peak", &format!("{live_peak_bytes}{counted}"));
    page.row("physical peak", &format!("{physical_peak_bytes}: {ratio:.4} of it"));
    if let Some(Fit { fit_bytes, fit_ratio }) = &answer.fit {
        page.row("fits in", &format!("{fit_bytes}: {fit_ratio:.4} of it"));
    }
    page.row("time", &format!("{ns_per_op:.0} ns for an event"));
    let taken = driver_ms.map(|ms| format!(", {ms:.1} ms as an H200 takes for them"));
    page.row("driver", &format!("{driver_calls} calls{}", taken.unwrap_or_default()));
    page
}
