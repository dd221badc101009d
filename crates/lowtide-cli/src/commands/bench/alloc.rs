//! `lowtide bench alloc`: the cost of a hit.
//!
//! All blocks are live. A visit frees one and allocates in its place: the same size again (*same*),
//! or the size of another block (*other*, where memory has to be cut and joined). Two tags, a stream
//! with a fence, blocks by raw address, one thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use lowtide_device::{Address, Bytes, Device, DeviceId, Stream};
use lowtide_pool::{Fence, Policy, Pool, SleepPolicy, StreamFence, StreamId, Tag};
use serde::Serialize;

use super::median;
use super::work::Work;
use crate::commands::replay;
use crate::page::{self, Page};
use crate::progress;

/// How the cost grows with the number of live blocks is measured in a dry run: no machine has the memory.
const GROWTH: [usize; 3] = [1_000, 10_000, 1_000_000];
/// About so many visits for each of them, in no fewer than 3 and no more than 101 rounds.
const GROWTH_VISITS: usize = 1_000_000;
/// Blocks that are visited again and again among many.
const HOT: usize = 1_000;
/// The pool gives out multiples of this.
const GRAIN: u64 = 512;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --device blocks are numbers in a dry run, a device without memory: the pool does the \
                  same work, and any number of them fits. On a real device sizes are halved until all blocks \
                  fit in four fifths of what is free."
)]
pub(crate) struct Options {
    /// Run it on a real device: host, cuda:0, …
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceId>,
    /// How many blocks are live.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    blocks: u32,
    /// How often every block is visited; the median counts.
    #[arg(long, value_name = "COUNT", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// What the sizes and the order follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the work (a line `SIZE,NEXT` for each block), so that another allocator can do the same.
    #[arg(long, value_name = "FILE")]
    work: Option<PathBuf>,
    /// Save what the pool was asked, as a trace for `lowtide replay`. The times then include
    /// the recording, so they are not the cost of a hit.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Leave out how the cost grows with the number of blocks, which takes some seconds.
    #[arg(long)]
    no_growth: bool,
    /// Print JSON instead of text; the keys are in docs/json.md.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    device: DeviceId,
    blocks: usize,
    live_bytes: Bytes,
    /// So that they fit, sizes were divided by this.
    sizes_divided_by: u64,
    rounds: u32,
    seed: u64,
    same_ns: f64,
    /// Calls at the driver during all of it: a hit makes none.
    same_driver_calls: u64,
    other_ns: f64,
    other_driver_calls: u64,
    growth: Vec<Growth>,
}

#[derive(Serialize)]
struct Growth {
    blocks: usize,
    /// Every block is visited: with many, each is cold in the processor's caches.
    same_ns: f64,
    /// A thousand of them are, again and again: what the number alone costs.
    hot_ns: f64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let spinner = progress::spinner("allocating and freeing");
    let answer = measure(options, &spinner)?;
    spinner.finish_and_clear();
    if options.json { page::print_json(&answer) } else { text(&answer).print() }
}

fn measure(options: &Options, spinner: &ProgressBar) -> anyhow::Result<Answer> {
    let device = options.device.map_or_else(|| Ok(unlimited()), Device::open)?;
    let (work, divided_by) = fitting(options, &device)?;
    if let Some(file) = &options.work {
        work.write(file)?;
    }
    let mut game = Game::new(&device, &work, options.record.is_some())?;
    let (same_ns, same_driver_calls) = game.play(options.rounds, Mode::Same, work.sizes.len())?;
    let (other_ns, other_driver_calls) =
        game.play(options.rounds, Mode::Other, work.sizes.len())?;
    if let (Some(file), Some(recording)) = (&options.record, game.pool.stop_recording()) {
        replay::save(&recording, file)?;
    }
    drop(game);
    let growth = GROWTH.iter().filter(|_| !options.no_growth).map(|blocks| {
        spinner.set_message(format!("allocating and freeing among {blocks} blocks, in a dry run"));
        grown(*blocks, options.seed)
    });
    Ok(Answer {
        device: device.info().id,
        blocks: work.sizes.len(),
        live_bytes: Bytes(work.bytes()),
        sizes_divided_by: divided_by,
        rounds: options.rounds,
        seed: options.seed,
        same_ns,
        same_driver_calls,
        other_ns,
        other_driver_calls,
        growth: growth.collect::<anyhow::Result<_>>()?,
    })
}

fn unlimited() -> Device {
    Device::dry_run(Bytes::gib(1 << 16)).0
}

// Sizes as they are, where the device has room for them and for what another order wastes.
fn fitting(options: &Options, device: &Device) -> anyhow::Result<(Work, u64)> {
    let free = device.usage()?.free;
    let work = |divided_by| Work::ragged(options.blocks as usize, divided_by, options.seed);
    let fits = |work: &Work| {
        let taken: u64 = work.sizes.iter().map(|size| size.next_multiple_of(GRAIN)).sum();
        taken <= free.0 / 5 * 4
    };
    let mut tried = (0..=20).map(|power| 1 << power).map(|divide| (work(divide), divide));
    tried.find(|(work, _)| fits(work)).with_context(|| {
        let (blocks, id) = (options.blocks, device.info().id);
        format!("{blocks} blocks do not fit in the {free} that {id} has free; try fewer --blocks")
    })
}

fn grown(blocks: usize, seed: u64) -> anyhow::Result<Growth> {
    let work = Work::ragged(blocks, 1, seed);
    let mut game = Game::new(&unlimited(), &work, false)?;
    let rounds = (GROWTH_VISITS / blocks).clamp(3, 101) as u32;
    let (same_ns, _) = game.play(rounds, Mode::Same, blocks)?;
    let (hot_ns, _) = game.play(101, Mode::Same, HOT)?;
    Ok(Growth { blocks, same_ns, hot_ns })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Same,
    Other,
}

/// A stream that is always done, for the dry run.
struct Done;

impl Fence for Done {
    fn has_passed(&self, _: StreamId) -> bool {
        true
    }

    fn wait(&self, _: StreamId) -> lowtide_device::Result<()> {
        Ok(())
    }
}

struct Game<'a> {
    pool: Pool,
    work: &'a Work,
    stream: StreamId,
    /// What the fence watches.
    _watched: Option<Arc<Stream>>,
    /// In the order of the visits, so that finding one costs the bench nothing.
    visited: Vec<(Address, Tag)>,
}

impl<'a> Game<'a> {
    fn new(device: &Device, work: &'a Work, record: bool) -> anyhow::Result<Game<'a>> {
        let (mut watched, mut fence, mut stream) =
            (None, Arc::new(Done) as Arc<dyn Fence>, StreamId(1));
        if device.info().id != DeviceId::DryRun {
            let (own, streams) = (Arc::new(device.stream()?), StreamFence::default());
            stream = streams.watch(&own);
            (watched, fence) = (Some(own), Arc::new(streams));
        }
        let pool = Pool::new(device, Policy::default(), Some(fence))?;
        if record {
            pool.start_recording();
        }
        let kinds =
            [pool.tag("weights", SleepPolicy::Offload)?, pool.tag("cache", SleepPolicy::Discard)?];
        let mut blocks = Vec::with_capacity(work.sizes.len());
        for (size, tag) in work.sizes.iter().zip(kinds.iter().cycle()) {
            blocks.push((pool.alloc(Bytes(*size), stream, *tag)?, *tag));
        }
        let visited = work.visits.iter().map(|block| blocks[*block as usize]).collect();
        Ok(Game { pool, work, stream, _watched: watched, visited })
    }

    /// Visits the first so many blocks: the median over the rounds, in ns for a pair, and calls at
    /// the driver in all of them.
    fn play(&mut self, rounds: u32, mode: Mode, count: usize) -> anyhow::Result<(f64, u64)> {
        let calls = self.pool.device().calls();
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 0..rounds as usize {
            let sizes: Vec<u64> = (0..count)
                .map(|visit| match mode {
                    Mode::Same => visit,
                    // In the next round each block takes yet another's size.
                    Mode::Other => (visit + 1 + round) % count,
                })
                .map(|visit| self.work.sizes[self.work.visits[visit] as usize])
                .collect();
            let began = Instant::now();
            for ((address, tag), size) in self.visited.iter_mut().zip(&sizes) {
                self.pool.free(*address, self.stream)?;
                *address = self.pool.alloc(Bytes(*size), self.stream, *tag)?;
            }
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            times.push(began.elapsed().as_nanos() as f64 / count as f64);
        }
        Ok((median(times), self.pool.device().calls() - calls))
    }
}

fn text(answer: &Answer) -> Page {
    let mut page = Page::default();
    let Answer { device, blocks, live_bytes, sizes_divided_by, rounds, .. } = answer;
    page.title(&device.to_string(), "a block freed and another allocated");
    page.row(
        "live",
        &format!("{blocks} blocks, {live_bytes} (sizes of ragged ÷ {sizes_divided_by})"),
    );
    let calls = |count: u64| format!("{count} driver calls in {rounds} rounds");
    page.row(
        "the same size",
        &format!("{:.0} ns a pair; {}", answer.same_ns, calls(answer.same_driver_calls)),
    );
    page.row(
        "another size",
        &format!("{:.0} ns a pair; {}", answer.other_ns, calls(answer.other_driver_calls)),
    );
    for Growth { blocks, same_ns, hot_ns } in &answer.growth {
        let value = format!("{same_ns:.0} ns a pair, among {HOT} of them {hot_ns:.0} ns (dry run)");
        page.row(&format!("{blocks} live"), &value);
    }
    page
}
