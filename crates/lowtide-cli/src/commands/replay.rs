//! `lowtide replay`: how much memory the pool needs for an allocation trace.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use lowtide_device::{Bytes, Device, DeviceId};
use lowtide_pool::Policy;
use lowtide_pool::replay::{self, Fit, Report};
use lowtide_pool::trace::{self, Event};
use serde::Serialize;

use crate::arguments::devices;
use crate::arguments::files::{self, NamedFile};
use crate::arguments::numbers;
use crate::program::ending::Ending;
use crate::text::page::{self, Page};
use crate::text::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace is a CSV file in the format of RMM's log: Thread,Time,Action,Pointer,Size,Stream. \
                  bench/traces.py writes five.\n\n\
                  Without --device the trace runs as a dry run: the pool works as usual, on a device that \
                  allocates nothing. So the trace may be larger than this machine. driver_ms is then the time that the \
                  driver calls take on an H200.\n\n\
                  With --threads the order of events depends on the run, so two runs differ, and the live peak is \
                  what the pool counted, in multiples of 128 or 256 bytes. With --streams and one thread every run is the \
                  same: a stream has passed once nothing was freed on it for 64 events, or once the pool waited for \
                  it."
)]
pub(crate) struct Options {
    /// The trace; `-` reads standard input.
    trace: PathBuf,
    /// Run the trace on a real device: host, cuda:0, …
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    device: Option<DeviceId>,
    /// The memory of the dry run, as in 80GiB or 80GB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1TiB",
        conflicts_with = "device",
        allow_negative_numbers = true
    )]
    memory: Bytes,
    /// Distribute the blocks over so many streams, which hold back the blocks that were freed on them.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = numbers::whole::<u32>("", 1, 64))]
    streams: u32,
    /// Distribute the blocks over so many threads, which use one pool at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = numbers::whole::<u32>("", 1, 64))]
    threads: u32,
    /// Save the requests to the pool as another trace, in the place of a file that exists; the time
    /// then includes the recording.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Also find the smallest memory in which the trace completes (as a dry run, in the trace's order).
    #[arg(long, conflicts_with_all = ["streams", "threads"])]
    fit: bool,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ReplayReport {
    #[serde(flatten)]
    replay: Report,
    #[serde(flatten)]
    fit: Option<Fit>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let (device, tally) = if let Some(id) = options.device {
        (devices::open(id)?, None)
    } else {
        let (device, tally) = Device::dry_run(options.memory);
        (device, Some(tally))
    };
    let events = read(&options.trace)?;
    let how = replay::Options {
        streams: options.streams,
        threads: options.threads,
        record: options.record.is_some(),
    };
    let progress = planned(&events, options.fit);
    progress.say("replaying");
    let count = |bytes| progress.add(bytes);
    let replay =
        replay::replay(&events, &device, tally.as_deref(), Policy::default(), how, &count)?;
    if let (Some(file), Some(recording)) = (&options.record, &replay.recording) {
        files::write(file, |out| recording.write_to(out))?;
    }
    let fit = options.fit.then(|| {
        progress.say("searching for the smallest memory in which it completes");
        let all = replay::allocated(&events);
        replay::fit(&events, Policy::default(), || progress.add(all))
    });
    drop(progress);
    let report = ReplayReport { replay, fit: fit.transpose()? };
    if options.json { page::print_json(&report) } else { text(&report).print() }?;
    Ok(Ending::Proved)
}

// The bytes of all allocations: of one replay, and of those that search for the smallest memory.
fn planned(events: &[Event], with_fit: bool) -> Progress {
    let replays = 1 + if with_fit { replay::fit_replays(events) } else { 0 };
    Progress::of(Bytes(replay::allocated(events).0.saturating_mul(u64::from(replays))))
}

fn read(from: &Path) -> anyhow::Result<Vec<Event>> {
    if from == Path::new("-") {
        return trace::read(io::stdin().lock()).context("reading standard input");
    }
    let name = from.display();
    let file = files::open(from)?;
    let progress = Progress::of(Bytes(file.size()));
    progress.say(format!("reading {name}"));
    let counted = Counted { file, progress: &progress };
    trace::read(BufReader::new(counted)).with_context(|| format!("reading {name}"))
}

/// A file whose bytes are counted as they are read.
struct Counted<'a> {
    file: NamedFile,
    progress: &'a Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.progress.add(Bytes(count as u64));
        Ok(count)
    }
}

fn text(report: &ReplayReport) -> Page {
    let Report { events, streams, threads, live_peak_bytes, physical_peak_bytes, .. } =
        &report.replay;
    let Report { ratio, ns_per_op, driver_calls, driver_ms, .. } = &report.replay;
    let mut page = Page::default();
    page.row("events", &events.to_string());
    if (*streams, *threads) != (1, 1) {
        page.row("distributed over", &format!("streams: {streams}, threads: {threads}"));
    }
    let counted = if *threads > 1 { ", as the pool counted it" } else { "" };
    page.row("live peak", &format!("{live_peak_bytes}{counted}"));
    page.row("physical peak", &format!("{physical_peak_bytes} ({ratio:.4} × the live peak)"));
    if let Some(Fit { fit_bytes, fit_ratio }) = &report.fit {
        page.row("fits in", &format!("{fit_bytes} ({fit_ratio:.4} × the live peak)"));
    }
    page.row("time", &format!("{ns_per_op:.0} ns per event"));
    let taken = driver_ms.map(|ms| format!(", which take {ms:.1} ms on an H200"));
    page.row("driver calls", &format!("{driver_calls}{}", taken.unwrap_or_default()));
    page
}
