//! `lowtide demo`: five scenarios with real allocations on this machine's best device, each first the
//! usual way ("today") and then with lowtide.
//!
//! Both ways use the same pool on the same device; what the usual way lacks is the release. Each
//! scenario checks its results against the device's own numbers, and is proved if every check passes.

mod away;
mod between;
mod content;
mod idle;
mod report;
mod samples;
mod scenario;
mod setup;
mod shutdown;
mod sizes;
mod stages;
mod updates;
mod watch;

use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide::device::{Bytes, DeviceId, Source};
use serde::Serialize;

use self::scenario::Scenario;
use self::setup::Setup;
use crate::arguments::devices;
use crate::arguments::numbers;
use crate::program::ending::Ending;
use crate::text::page;

/// A scenario of the demo.
struct Entry {
    /// The subject of the scenario, in a line.
    about: &'static str,
    /// Returns the bytes that it fills and compares.
    planned: fn(&Setup) -> Bytes,
    run: fn(&Setup) -> anyhow::Result<Scenario>,
}

const SCENARIOS: [Entry; 5] = [
    Entry {
        about: "four models in one process, one after another",
        planned: stages::planned,
        run: stages::run,
    },
    Entry {
        about: "a model is evaluated on three tasks with large temporary buffers",
        planned: between::planned,
        run: between::run,
    },
    Entry {
        about: "a runner is shut down while an unregistered wrapper holds its weights",
        planned: shutdown::planned,
        run: shutdown::run,
    },
    Entry {
        about: "a server works, is idle for a while, and works again",
        planned: idle::planned,
        run: idle::run,
    },
    Entry {
        about: "200 weight updates, with a worker paused in place at each",
        planned: updates::planned,
        run: updates::run,
    },
];

#[derive(Debug, clap::Args)]
#[command(after_help = "Five scenarios, each first the usual way and then with lowtide:\n  \
                  stages         four models in turn: the peak is the largest, not the sum\n  \
                  between tasks  the buffers of a task are freed before the next task\n  \
                  shutdown       a wrapper holds the weights: the receipt names it\n  \
                  idle           weights sleep while idle, and on a GPU the process leaves the device altogether;\n                 the next task finds every byte\n  \
                  updates        200 weight updates: reserved memory does not grow\n\n\
                  Blocks are filled with real bytes, and compared where they must survive. All numbers are the \
                  device's own: the kernel's for host, NVML's on a GPU (of this process, or of all processes if the \
                  driver does not report it). Sizes are halved until they fit into the free memory.\n\n\
                  Ends with 0 only if the device confirms every result, and with 1 and the failed checks otherwise. \
                  Leaves nothing behind except, on a GPU, the stored floor that `doctor` uses too.")]
pub(crate) struct Options {
    /// The device: host, cuda:0, … By default the first GPU, or host without one.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// Stay in each state (before, peak, after) for so many milliseconds, so that `lowtide ps` or
    /// `nvidia-smi` can show it. The JSON lists the states with their times.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = numbers::whole::<u64>("milliseconds", 0, 60_000))]
    hold: u64,
    /// Divide the usual sizes by this.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, hide = true, value_parser = numbers::whole::<u64>("", 1, 4096))]
    divide: u64,
    /// Print every receipt with all its numbers and rungs.
    #[arg(long)]
    rungs: bool,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DemoReport {
    device: DeviceId,
    name: String,
    /// The source of the numbers, and the processes that they count.
    source: Source,
    counts: &'static str,
    floor_bytes: Option<Bytes>,
    unit_bytes: Bytes,
    hold_ms: u64,
    took_s: f64,
    scenarios: Vec<Scenario>,
    proved: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let began = Instant::now();
    let id = options.device.unwrap_or_else(devices::best);
    let setup = Setup::open(id, options.divide, Duration::from_millis(options.hold), options.json)?;
    setup.progress.plan(SCENARIOS.iter().map(|entry| (entry.planned)(&setup)).sum());
    if !options.json {
        setup.progress.suspend(|| opening(&setup).print())?;
    }
    let mut scenarios = Vec::new();
    for (Entry { about, run, .. }, number) in SCENARIOS.into_iter().zip(1..) {
        let began = Instant::now();
        let mut scenario = run(&setup).with_context(|| format!("scenario {number}, {about}"))?;
        scenario.took_s = began.elapsed().as_secs_f64();
        if !options.json {
            let text = || report::scenario(&scenario, number, about, options.rungs).print();
            setup.progress.suspend(text)?;
        }
        scenarios.push(scenario);
    }
    let report = DemoReport {
        device: id,
        name: setup.device.info().name.clone(),
        source: setup.device.usage()?.source,
        counts: if setup.counts_own { "own" } else { "everybody" },
        floor_bytes: setup.floor.bytes,
        unit_bytes: setup.unit.times(1),
        hold_ms: options.hold,
        took_s: began.elapsed().as_secs_f64(),
        proved: scenarios.iter().all(Scenario::is_proved),
        scenarios,
    };
    drop(setup);
    if options.json { page::print_json(&report) } else { closing(&report).print() }?;
    if report.proved {
        Ok(Ending::Proved)
    } else {
        Ok(Ending::NotProved { what: failed_checks(&report.scenarios) })
    }
}

fn opening(setup: &Setup) -> page::Page {
    let info = setup.device.info();
    let mut page = page::Page::default();
    page.title(&info.id.to_string(), &info.name);
    page.row("uses at most", &setup.unit.budget().to_string());
    match (setup.floor.bytes, &setup.floor.reason) {
        (Some(floor), _) => page.row("floor", &floor.to_string()),
        (None, reason) => page.row("floor", reason.as_deref().unwrap_or("unknown")),
    }
    page.blank();
    page
}

fn closing(report: &DemoReport) -> page::Page {
    let mut page = report::table(&report.scenarios);
    page.blank();
    let proved = report.scenarios.iter().filter(|scenario| scenario.is_proved()).count();
    let (count, seconds) = (report.scenarios.len(), report.took_s);
    page.line(&format!("{proved} of {count} scenarios proved in {seconds:.1} s"));
    page
}

fn failed_checks(scenarios: &[Scenario]) -> String {
    let failed = scenarios.iter().flat_map(|scenario| {
        let (name, verdict) = (scenario.name, scenario.verdict);
        scenario.failed_checks().map(move |what| format!("{name} ({verdict}): {what}"))
    });
    failed.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_done_are_the_bytes_planned() {
        let setup = Setup::open(DeviceId::Host, 8, Duration::ZERO, false).unwrap();
        for Entry { about, planned, run } in SCENARIOS {
            let (before, _) = setup.progress.counted();
            assert!(run(&setup).unwrap().is_proved(), "{about}");
            let (after, _) = setup.progress.counted();
            assert_eq!(after - before, planned(&setup), "{about}");
        }
    }
}
