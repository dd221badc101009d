//! `lowtide demo`: five scenarios with real allocations on this machine's best device, each first the
//! usual way ("today") and then with lowtide.
//!
//! Both ways use the same pool on the same device; what the usual way lacks is the release. Each
//! scenario checks its results against the device's own numbers, and is proved if every check passes.

mod idle;
mod scenario;
mod setup;
mod shutdown;
mod stages;
mod updates;

use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide::device::{Bytes, DeviceId, Source};
use lowtide::release::Verdict;
use serde::Serialize;

use self::scenario::{Entry, Scenario};
use self::setup::{Setup, UNITS};
use crate::arguments::{devices, numbers};
use crate::program::ending::Ending;
use crate::text::page::{self, Page};

const SCENARIOS: [Entry; 5] = [
    Entry {
        name: "stages",
        about: "four models in one process, one after another",
        today: "a pipeline keeps every model that it has loaded",
        lowtide: "each model is torn down, with a receipt, before the next one loads",
        planned: |setup| setup.units(3 * 40),
        ways: [stages::today, stages::with_lowtide],
    },
    Entry {
        name: "between tasks",
        about: "a model is evaluated on three tasks with large temporary buffers",
        today: "buffers are dropped after each task, and stay cached",
        lowtide: "after each task: collect, then trim",
        planned: |setup| setup.units(3 * 4 + 4 * 30),
        ways: [stages::between_tasks; 2],
    },
    Entry {
        name: "shutdown",
        about: "a runner is shut down while an unregistered wrapper holds its weights",
        today: "the model is dropped and the allocator's cache emptied; a wrapper still refers to the weights",
        lowtide: "wrappers are dropped first; remaining holders are named; the runner is kept",
        planned: |setup| setup.units(2 * 13),
        ways: [shutdown::today, shutdown::with_lowtide],
    },
    Entry {
        name: "idle",
        about: "a server works, is idle for a while, and works again",
        today: "an idle server keeps all its memory",
        lowtide: "after a short idle time the weights sleep and the cache is discarded",
        planned: |setup| setup.units(3 * 12 + 2 * 4),
        ways: [idle::today, idle::with_lowtide],
    },
    Entry {
        name: "updates",
        about: "200 weight updates, with a worker paused in place at each",
        today: "pause, update, resume; cached memory stays",
        lowtide: "the same pauses; cached memory is freed before the gate opens",
        planned: updates::planned,
        ways: [updates::run; 2],
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
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
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
    let setup = Setup::open(id, options.divide, Duration::from_millis(options.hold))?;
    let progress = &setup.content.progress;
    progress.plan(SCENARIOS.iter().map(|entry| (entry.planned)(&setup)).sum());
    if !options.json {
        progress.suspend(|| opening(&setup).print())?;
    }
    let mut scenarios = Vec::new();
    for (entry, number) in SCENARIOS.iter().zip(1..) {
        let scenario = Scenario::run(&setup, entry);
        let scenario = scenario.with_context(|| format!("scenario {number}, {}", entry.about))?;
        if !options.json {
            let text = || scenario.text(number, entry.about, options.rungs).print();
            progress.suspend(text)?;
        }
        scenarios.push(scenario);
    }
    let report = DemoReport {
        device: id,
        name: setup.device.info().name.clone(),
        source: setup.device.usage()?.source,
        counts: if setup.counts_own { "own" } else { "everybody" },
        floor_bytes: setup.floor.as_ref().ok().copied(),
        unit_bytes: setup.unit,
        hold_ms: options.hold,
        took_s: began.elapsed().as_secs_f64(),
        proved: scenarios.iter().all(|it| it.verdict() == Verdict::Released),
        scenarios,
    };
    drop(setup);
    if options.json { page::print_json(&report) } else { closing(&report).print() }?;
    if report.proved {
        return Ok(Ending::Proved);
    }
    let failed: Vec<_> = report.scenarios.iter().flat_map(Scenario::failures).collect();
    Ok(Ending::NotProved { what: failed.join("; ") })
}

fn opening(setup: &Setup) -> Page {
    let info = setup.device.info();
    let mut page = Page::default();
    page.title(&info.id.to_string(), &info.name);
    page.row("uses at most", &setup.units(UNITS).to_string());
    page.row("floor", &setup.floor.as_ref().map_or_else(Clone::clone, ToString::to_string));
    page.blank();
    page
}

fn closing(report: &DemoReport) -> Page {
    let mut page = Page::default();
    let mut row = |name: &str, [one, two, three, four]: [String; 4], verdict: &str| {
        page.line(&format!("{name:<13}{one:>14}{two:>13}{three:>15}{four:>13}  {verdict}"));
    };
    let heads = ["today: peak", "left", "lowtide: peak", "left"];
    row("scenario", heads.map(str::to_owned), "verdict");
    for scenario in &report.scenarios {
        let Scenario { name, today, with, .. } = scenario;
        let bytes = [today.peak_bytes, today.after_bytes, with.peak_bytes, with.after_bytes];
        row(name, bytes.map(|bytes| bytes.to_string()), &scenario.verdict().to_string());
    }
    page.blank();
    let proved = report.scenarios.iter().filter(|it| it.verdict() == Verdict::Released).count();
    let (count, seconds) = (report.scenarios.len(), report.took_s);
    page.line(&format!("{proved} of {count} scenarios proved in {seconds:.1} s"));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_done_are_planned_and_no_scenario_uses_more_than_the_models_together() {
        let setup = Setup::open(DeviceId::Host, 8, Duration::ZERO).unwrap();
        let models = setup.units(stages::MODELS.iter().map(|(_, units)| units).sum());
        for entry in &SCENARIOS {
            let (before, _) = setup.content.progress.counted();
            let scenario = Scenario::run(&setup, entry).unwrap();
            assert_eq!(scenario.verdict(), Verdict::Released, "{}", entry.about);
            let (after, _) = setup.content.progress.counted();
            assert_eq!(after - before, (entry.planned)(&setup), "{}", entry.about);
            let Scenario { today, with, .. } = scenario;
            assert!(today.peak_bytes.max(with.peak_bytes) <= models, "{}", entry.about);
        }
    }
}
