//! `lowtide demo`: the five practices on this machine's best device, with real bytes, each first as
//! people follow it today and then with lowtide.
//!
//! Both ways use the same pool on the same device; what today's way lacks is the release. Whether an
//! act is proved is decided by claims that code checks against the device's own numbers.

mod act;
mod between;
mod content;
mod idle;
mod report;
mod shutdown;
mod site;
mod sizes;
mod stages;
mod updates;
mod watch;

use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide::{Bytes, DeviceId, Source, known_devices};
use serde::Serialize;

use self::act::Act;
use self::site::Site;
use super::NotProved;
use crate::{page, progress};

type Play = fn(&Site) -> anyhow::Result<Act>;

/// The programme: what each act is about, and who plays it.
const ACTS: [(&str, Play); 5] = [
    ("four models in one process, one after another", stages::play),
    ("a model is evaluated on three tasks with large temporary buffers", between::play),
    ("a runner is shut down while a wrapper that nobody told holds its weights", shutdown::play),
    ("work, then nobody for a while, then work again", idle::play),
    ("two hundred weight updates, a worker paused in place at each", updates::play),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "Five acts, each as people do it today and then with lowtide:\n  \
                  stages         four models one after another: the peak is the largest, not the sum\n  \
                  between tasks  a task's buffers are back with the device before the next task\n  \
                  shutdown       a wrapper pins the weights: it is named, told, and the memory is free\n  \
                  idle           weights sleep when nobody works; the next task finds every byte\n  \
                  updates        200 weight updates with pauses in place: reserved memory stays flat\n\n\
                  Blocks are filled with real bytes, and compared where they must survive. All numbers are the \
                  device's own: the kernel's for host, on a GPU NVML's of this process (of everybody, where the \
                  driver does not tell). Sizes are halved until they fit into what is free.\n\n\
                  Ends with 0 if every act was proved, with 1 and what was not otherwise. Leaves nothing behind but, \
                  on a GPU, the floor that `doctor` remembers too.")]
pub(crate) struct Options {
    /// Where: host, cuda:0, … The first GPU, or host where there is none, if not given.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// Stay in each state (before, at the peak, after) for so long, so that it can be seen from
    /// outside: `lowtide ps`, `nvidia-smi`. The states and their times are in the JSON.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    hold: u64,
    /// Divide the usual sizes by this.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, hide = true, value_parser = clap::value_parser!(u64).range(1..=4096))]
    divide: u64,
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    device: DeviceId,
    name: String,
    /// Who said what is in use, and of whom.
    source: Source,
    counts: &'static str,
    floor_bytes: Option<Bytes>,
    unit_bytes: Bytes,
    hold_ms: u64,
    took_s: f64,
    acts: Vec<Act>,
    proved: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let id = options.device.unwrap_or_else(best);
    let bar = progress::steps(ACTS.len() as u64);
    let site = Site::open(id, options.divide, Duration::from_millis(options.hold), bar.clone())?;
    if !options.json {
        bar.suspend(|| opening(&site).print())?;
    }
    let mut acts = Vec::new();
    for ((what, play), number) in ACTS.into_iter().zip(1..) {
        let began = Instant::now();
        let mut act = play(&site).with_context(|| format!("act {number}, {what}"))?;
        act.took_s = began.elapsed().as_secs_f64();
        if !options.json {
            bar.suspend(|| report::act(&act, number, what).print())?;
        }
        acts.push(act);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let answer = Answer {
        device: id,
        name: site.device.info().name.clone(),
        source: site.device.usage()?.source,
        counts: if site.counts_own { "own" } else { "everybody" },
        floor_bytes: site.floor.bytes,
        unit_bytes: site.unit.times(1),
        hold_ms: options.hold,
        took_s: began.elapsed().as_secs_f64(),
        proved: acts.iter().all(Act::is_proved),
        acts,
    };
    if options.json { page::print_json(&answer) } else { closing(&answer).print() }?;
    if answer.proved { Ok(()) } else { Err(NotProved(what_was_not(&answer.acts)).into()) }
}

// The first GPU there is.
fn best() -> DeviceId {
    known_devices().into_iter().find(|id| *id != DeviceId::Host).unwrap_or(DeviceId::Host)
}

fn opening(site: &Site) -> page::Page {
    let info = site.device.info();
    let mut page = page::Page::default();
    page.title(&info.id.to_string(), &info.name);
    page.row("at the most", &format!("{} for all acts, one after another", site.unit.budget()));
    match (site.floor.bytes, &site.floor.reason) {
        (Some(floor), _) => page.row("floor", &floor.to_string()),
        (None, reason) => page.row("floor", reason.as_deref().unwrap_or("unknown")),
    }
    page.blank();
    page
}

fn closing(answer: &Answer) -> page::Page {
    let mut page = report::table(&answer.acts);
    page.blank();
    let proved = answer.acts.iter().filter(|act| act.is_proved()).count();
    let (acts, seconds) = (answer.acts.len(), answer.took_s);
    page.line(&format!("{proved} of {acts} acts proved in {seconds:.1} s"));
    page
}

fn what_was_not(acts: &[Act]) -> String {
    let said = acts.iter().flat_map(|act| {
        act.not_proved().map(|what| format!("{} ({}): {what}", act.name, act.verdict))
    });
    said.collect::<Vec<_>>().join("; ")
}
