//! `lowtide bench sleep`: sleep and wake of a model's weights and its cache, beside the plain copy
//! of the same bytes in the same run.
//!
//! The work is that of `bench/peer_sleep.py`: the weights of a model of eight thousand million
//! parameters are kept, the cache of its attention is lost. First sleeps want processes of their own,
//! since nothing may be prepared; each process then does the later turns too, those that wake at once
//! after the others, and medians are taken over all of them.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide_device::headroom::HostHeadroom;
use lowtide_device::{Bytes, Device, DeviceId, known_devices};
use lowtide_pool::{Policy, Pool, Scope, Snapshot};
use serde::{Deserialize, Serialize};

use super::median;
use super::model::Model;
use crate::page::{self, Page};
use crate::progress;

/// How long a sleep lasts. A driver clears freed memory for some time afterwards, on the engine that
/// copies in: a wake, and any other copy, is slower until it is done.
const REST: Duration = Duration::from_millis(300);

/// Host memory beside backups: random bytes, what is read back, what is left to the machine.
const BESIDE: Bytes = Bytes::mib(640);

#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Each process fills the blocks with random bytes, sleeps for the first time, then does the \
                  later turns: nothing changed and every page changed in turn, then wakes without a rest before \
                  them, then the plain copy of the kept bytes. After every wake the digest of every page is compared, after the last one block in 17 byte for byte."
)]
pub(crate) struct Options {
    /// Where: host, cuda:0, … The first GPU, or host where there is none, if not given.
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// How many processes, for first sleeps. On cuda 5, on host 1, if not given.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    processes: Option<u32>,
    /// How many later turns of each kind in a process.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Divide every size by this. The least power of two with which it fits, if not given.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=4096))]
    divide: Option<u64>,
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

/// What one process measured, in seconds.
#[derive(Serialize, Deserialize)]
struct Measured {
    first_sleep_s: f64,
    unchanged_sleep_s: Vec<f64>,
    changed_sleep_s: Vec<f64>,
    wake_s: Vec<f64>,
    wake_at_once_s: Vec<f64>,
    raw_out_s: Vec<f64>,
    raw_in_s: Vec<f64>,
    /// In use on the device before there was a pool.
    context_bytes: Bytes,
    /// In use on the device in the first sleep.
    asleep_bytes: Bytes,
    backup_bytes: Bytes,
    right: bool,
    asleep: serde_json::Value,
}

impl Measured {
    fn above_context(&self) -> Bytes {
        self.asleep_bytes.saturating_sub(self.context_bytes)
    }
}

#[derive(Serialize)]
struct Answer {
    device: DeviceId,
    kept_bytes: Bytes,
    kept_blocks: usize,
    discarded_bytes: Bytes,
    discarded_blocks: usize,
    sizes_divided_by: u64,
    processes: usize,
    turns: u32,
    raw_out_s: f64,
    raw_in_s: f64,
    first_sleep_s: f64,
    first_sleeps_s: Vec<f64>,
    unchanged_sleep_s: f64,
    changed_sleep_s: f64,
    wake_s: f64,
    /// The same with no rest before it: the driver is still clearing what was freed.
    wake_at_once_s: f64,
    /// The later sleep with every page changed over the plain copy out.
    changed_ratio: f64,
    /// The wake over the plain copy in.
    wake_ratio: f64,
    /// In use on the device before there was a pool, and in the first sleep: of the process in
    /// which the second was furthest above the first.
    context_bytes: Bytes,
    asleep_bytes: Bytes,
    backup_bytes: Bytes,
    right: bool,
    /// The same process's pool in that sleep.
    asleep: serde_json::Value,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let id = options.device.unwrap_or_else(usual_device);
    let processes = options.processes.unwrap_or(if id == DeviceId::Host { 1 } else { 5 });
    // A device that cannot be used is told before any process is started; a context of ours takes
    // memory of it, so that it goes before they are.
    let device = Device::open(id)?;
    let divide = options.divide.map_or_else(|| fitting(&device), Ok)?;
    drop(device);
    let bar = progress::steps(u64::from(processes));
    bar.set_message(format!("sleeping and waking on {id}, processes"));
    bar.tick();
    let mut measured = Vec::new();
    for _ in 0..processes {
        measured.push(in_a_process(id, divide, options.turns)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let answer = merge(id, divide, options.turns, measured)?;
    if options.json {
        page::print_json(&answer)?;
    } else {
        text(&answer).print()?;
    }
    ensure!(answer.right, "a block did not have its bytes after a wake: this is a bug of lowtide");
    Ok(())
}

// The first GPU there is.
fn usual_device() -> DeviceId {
    known_devices().into_iter().find(|id| *id != DeviceId::Host).unwrap_or(DeviceId::Host)
}

// What sizes are divided by so that the work fits on the device, and twice what is kept in this
// machine: as backups, and for the plain copy. On a machine's own memory both are in one place.
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

fn in_a_process(id: DeviceId, divide: u64, turns: u32) -> anyhow::Result<Measured> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["bench", "sleep-child", "--device", &id.to_string()]);
    command.args(["--turns", &turns.to_string(), "--divide", &divide.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().context("starting a process")?;
    ensure!(
        output.status.success(),
        "a process of the bench ended with {}; where memory was short, a larger --divide than \
         {divide} takes less of it",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("reading what a process measured")
}

/// One process's part.
pub(crate) fn child(options: &Options) -> anyhow::Result<()> {
    let device = Device::open(options.device.context("the parent names the device")?)?;
    let measured = measure(&device, options.divide.unwrap_or(1), options.turns)?;
    page::print_json(&measured)
}

fn measure(device: &Device, divide: u64, turns: u32) -> anyhow::Result<Measured> {
    let context = device.usage()?.in_use();
    let pool = Pool::new(device, Policy::default(), None)?;
    let mut model = Model::load(&pool, divide)?;
    let sleep = || timed(|| pool.sleep(Scope::Whole).map(drop));
    let wake = || timed(|| pool.wake(Scope::Whole).map(drop));
    let first_sleep = sleep()?;
    let asleep: Snapshot = pool.snapshot();
    let asleep_bytes = device.usage()?.in_use();
    let rested_wake = || {
        thread::sleep(REST);
        wake()
    };
    let mut wakes = vec![rested_wake()?];
    let mut right = model.is_right()?;
    let (mut unchanged, mut changed, mut at_once) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns {
        unchanged.push(sleep()?);
        wakes.push(rested_wake()?);
        right &= model.is_right()?;
        model.change()?;
        changed.push(sleep()?);
        wakes.push(rested_wake()?);
        right &= model.is_right()?;
    }
    // Last of all: after such a wake a driver may still be clearing what was freed before it, which
    // slows the next sleep's release. No other figure should have that in it.
    for _ in 0..turns {
        sleep()?;
        at_once.push(wake()?);
        right &= model.is_right()?;
    }
    right &= model.is_right_to_the_byte()?;
    let backup = pool.counts().host;
    pool.sleep(Scope::Whole)?;
    let (raw_out, raw_in) = raw_copies(device, model.kept(), turns)?;
    Ok(Measured {
        first_sleep_s: first_sleep,
        unchanged_sleep_s: unchanged,
        changed_sleep_s: changed,
        wake_s: wakes,
        wake_at_once_s: at_once,
        raw_out_s: raw_out,
        raw_in_s: raw_in,
        context_bytes: context,
        asleep_bytes,
        backup_bytes: backup,
        right,
        asleep: serde_json::to_value(asleep)?,
    })
}

// One chunk, one stream, memory that was ready before: what the link can do.
fn raw_copies(device: &Device, size: Bytes, turns: u32) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let size = Bytes(size.0.next_multiple_of(device.info().page.0));
    let reservation = device.reserve(size)?;
    reservation.map(Bytes::ZERO, device.create(size)?).map_err(lowtide_device::Error::from)?;
    reservation.open(Bytes::ZERO, size)?;
    let (memory, stream) = (device.host_memory(size)?, device.stream()?);
    let (on_device, on_host) = ((&reservation, Bytes::ZERO), (&memory, Bytes::ZERO));
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        out.push(timed(|| {
            stream.copy_out(on_device, on_host, size)?;
            stream.synchronize()
        })?);
        back.push(timed(|| {
            stream.copy_in(on_host, on_device, size)?;
            stream.synchronize()
        })?);
    }
    Ok((out, back))
}

fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

fn merge(
    id: DeviceId,
    divide: u64,
    turns: u32,
    mut measured: Vec<Measured>,
) -> anyhow::Result<Answer> {
    let all = |values: fn(&Measured) -> &[f64]| -> f64 {
        median(measured.iter().flat_map(|one| values(one).to_vec()).collect())
    };
    let first: Vec<f64> = measured.iter().map(|one| one.first_sleep_s).collect();
    let (raw_out_s, raw_in_s) = (all(|one| &one.raw_out_s), all(|one| &one.raw_in_s));
    let (changed_sleep_s, wake_s) = (all(|one| &one.changed_sleep_s), all(|one| &one.wake_s));
    let unchanged_sleep_s = all(|one| &one.unchanged_sleep_s);
    let wake_at_once_s = all(|one| &one.wake_at_once_s);
    let (processes, right) = (measured.len(), measured.iter().all(|one| one.right));
    let backup_bytes = measured.iter().map(|one| one.backup_bytes).max().unwrap_or_default();
    measured.sort_by_key(Measured::above_context);
    let worst = measured.pop().context("at least one process")?;
    Ok(Answer {
        device: id,
        kept_bytes: Model::kept_bytes(divide),
        kept_blocks: Model::KEPT_BLOCKS,
        discarded_bytes: Model::discarded_bytes(divide),
        discarded_blocks: Model::DISCARDED_BLOCKS,
        sizes_divided_by: divide,
        processes,
        turns,
        raw_out_s,
        raw_in_s,
        first_sleep_s: median(first.clone()),
        first_sleeps_s: first,
        unchanged_sleep_s,
        changed_sleep_s,
        wake_s,
        wake_at_once_s,
        changed_ratio: changed_sleep_s / raw_out_s,
        wake_ratio: wake_s / raw_in_s,
        context_bytes: worst.context_bytes,
        asleep_bytes: worst.asleep_bytes,
        backup_bytes,
        right,
        asleep: worst.asleep,
    })
}

fn text(answer: &Answer) -> Page {
    let Answer { processes, turns, sizes_divided_by, .. } = answer;
    let mut page = Page::default();
    let title = format!("medians; processes: {processes}, turns of each kind: {turns}");
    page.title(&answer.device.to_string(), &title);
    let blocks = |bytes: Bytes, count: usize| format!("{bytes} in {count} blocks");
    page.row("kept", &blocks(answer.kept_bytes, answer.kept_blocks));
    page.row("discarded", &blocks(answer.discarded_bytes, answer.discarded_blocks));
    if *sizes_divided_by > 1 {
        page.row("", &format!("(every size of the usual work divided by {sizes_divided_by})"));
    }
    let row = |seconds: f64, more: &str| format!("{:>9.1} ms{more}", seconds * 1e3);
    page.row("plain copy out", &row(answer.raw_out_s, ""));
    page.row("plain copy in", &row(answer.raw_in_s, ""));
    page.row("first sleep", &row(answer.first_sleep_s, ", nothing prepared"));
    page.row("later sleep", &row(answer.unchanged_sleep_s, ", nothing changed"));
    let ratio = format!(", every page changed: {:.3} of the copy", answer.changed_ratio);
    page.row("later sleep", &row(answer.changed_sleep_s, &ratio));
    let ratio = format!(", verified: {:.3} of the copy", answer.wake_ratio);
    page.row("wake", &row(answer.wake_s, &ratio));
    let rest = format!(", without the {} ms of rest before it", REST.as_millis());
    page.row("wake at once", &row(answer.wake_at_once_s, &rest));
    let above = answer.asleep_bytes.saturating_sub(answer.context_bytes);
    page.row("asleep", &format!("{above} on the device above the {} before", answer.context_bytes));
    page.row("backups", &format!("{} of host memory", answer.backup_bytes));
    let compared = format!(
        "after every wake by digest; after the last, one block in {} byte for byte",
        Model::COMPARED
    );
    page.row("contents", &format!("{} {compared}", if answer.right { "right" } else { "WRONG" }));
    page
}
