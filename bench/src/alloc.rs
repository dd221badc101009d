//! `lowtide-bench alloc`: the time of a hit.
//!
//! Every block is live. A visit frees one and allocates another in its place: of the same size
//! (*same*), or of the size of another block (*other*, where memory has to be split and merged). Two
//! tags, a stream with a fence, blocks by raw address, one thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide_device::{Address, Bytes, Chunk, Device, DeviceId, Stream};
use lowtide_pool::{Fence, Pool, SleepPolicy, StreamFence, StreamId, Tag};
use serde::Serialize;

use crate::median;
use crate::work::Work;
use lowtide_cli::arguments::{devices, files, numbers};
use lowtide_cli::program::ending::Ending;
use lowtide_cli::text::page::{self, Page};
use lowtide_cli::text::progress::Progress;

/// The numbers of live blocks with which growth is measured, as a dry run: no device has that much
/// memory.
const GROWTH: [usize; 3] = [1_000, 10_000, 1_000_000];
/// About so many visits for each of them, in 3 to 101 rounds.
const GROWTH_VISITS: usize = 1_000_000;
const GROWTH_ROUNDS_MOST: u32 = 101;
/// The number of blocks that are visited again and again among many.
const HOT: usize = 1_000;
/// The pool allocates multiples of this; these blocks are not tiny.
const GRAIN: u64 = 256;
/// The time of visits before the first that are measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// The page of a dry run.
const PAGE: u64 = 2 << 20;
/// The largest chunk of what is taken away.
const CHUNK_MOST: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --device this is a dry run: the pool does the same work on a device that allocates \
                  nothing, and any number of blocks fits. On a real device sizes are halved until all blocks fit \
                  in four fifths of the free memory.\n\n\
                  How much of the device is free decides what another size costs: where little is, the pool moves \
                  memory instead of taking more. --free 20 measures with a fifth of the device free, whatever its size."
)]
pub(crate) struct Options {
    /// Run on a real device: host, cuda:0, …
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    device: Option<DeviceId>,
    /// The number of live blocks.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = numbers::whole::<u32>("", 2, 10_000_000))]
    blocks: u32,
    /// Leave this percentage of the device free besides the blocks, by taking the rest of it away first.
    #[arg(long, value_name = "PERCENT", value_parser = numbers::whole::<u8>("percent", 1, 99))]
    free: Option<u8>,
    /// The number of visits to every block; the median counts.
    #[arg(long, value_name = "COUNT", default_value_t = 11, value_parser = numbers::whole::<u32>("", 1, 1000))]
    rounds: u32,
    /// The seed of sizes and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the work (one line `SIZE,NEXT` per block), so that another allocator can do the same. A
    /// file that exists is replaced.
    #[arg(long, value_name = "FILE")]
    work: Option<PathBuf>,
    /// Save the requests to the pool as a trace for `lowtide replay`, in the place of a file that
    /// exists. The times then include the recording, so they are not the time of a hit.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Do not measure how the time grows with the number of blocks, which takes some seconds.
    #[arg(long)]
    no_growth: bool,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct AllocFigures {
    device: DeviceId,
    blocks: usize,
    live_bytes: Bytes,
    /// What the device had free when all blocks were live, before the first visit.
    free_bytes: Bytes,
    /// The most that the pool took from the device in all rounds.
    physical_peak_bytes: Bytes,
    /// Every size was divided by this, so that all blocks fit.
    sizes_divided_by: u64,
    rounds: u32,
    seed: u64,
    same_ns: f64,
    /// Driver calls in all rounds: a hit makes none.
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
    /// A thousand blocks are visited again and again: the effect of the number alone.
    hot_ns: f64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let figures = measure(options)?;
    if options.json { page::print_json(&figures) } else { text(&figures).print() }?;
    Ok(Ending::Proved)
}

fn measure(options: &Options) -> anyhow::Result<AllocFigures> {
    let device = options.device.map_or_else(|| Ok(dry_run(options)), devices::open)?;
    let (work, divided_by) = fitting(options, &device)?;
    let _taken_away = take_away(options, &device, &work)?;
    if let Some(file) = &options.work {
        work.write(file)?;
    }
    let growth = if options.no_growth { &[][..] } else { &GROWTH };
    let growth: Vec<Work> =
        growth.iter().map(|blocks| Work::ragged(*blocks, 1, options.seed)).collect();
    let progress = Progress::of(planned(options.rounds, &work, &growth));
    progress.say("allocating and freeing");
    let mut visits = Visits::new(&device, &work, options.record.is_some())?;
    let (blocks, free_bytes) = (work.sizes.len(), device.usage()?.free);
    if options.record.is_none() {
        visits.warm_up()?;
    }
    let (same_ns, same_driver_calls) =
        visits.measure(options.rounds, Mode::Same, blocks, &progress)?;
    let (other_ns, other_driver_calls) =
        visits.measure(options.rounds, Mode::Other, blocks, &progress)?;
    if let (Some(file), Some(recording)) = (&options.record, visits.pool.stop_recording()?) {
        files::write(file, |out| recording.write_to(out))?;
    }
    let physical_peak_bytes = visits.pool.counts().physical_peak;
    drop(visits);
    Ok(AllocFigures {
        device: device.info().id,
        blocks,
        live_bytes: Bytes(work.bytes()),
        free_bytes,
        physical_peak_bytes,
        sizes_divided_by: divided_by,
        rounds: options.rounds,
        seed: options.seed,
        same_ns,
        same_driver_calls,
        other_ns,
        other_driver_calls,
        growth: growth.iter().map(|work| grown(work, &progress)).collect::<anyhow::Result<_>>()?,
    })
}

// The bytes of all allocations that are measured.
fn planned(rounds: u32, work: &Work, growth: &[Work]) -> Bytes {
    let grown = growth.iter().map(|work| {
        let hot: u64 = work.visited_sizes().take(HOT).sum();
        work.bytes() * u64::from(growth_rounds(work)) + hot * u64::from(GROWTH_ROUNDS_MOST)
    });
    Bytes(work.bytes() * u64::from(rounds) * 2 + grown.sum::<u64>())
}

fn growth_rounds(work: &Work) -> u32 {
    ((GROWTH_VISITS / work.sizes.len()) as u32).clamp(3, GROWTH_ROUNDS_MOST)
}

fn unlimited() -> Device {
    Device::dry_run(Bytes::gib(1 << 16)).0
}

// Where a part is to be free, a device of just that size.
fn dry_run(options: &Options) -> Device {
    let Some(percent) = options.free else { return unlimited() };
    let taken = taken(&Work::ragged(options.blocks as usize, 1, options.seed));
    let total = taken.div_ceil(100 - u64::from(percent)) * 100;
    Device::dry_run(Bytes(total.next_multiple_of(PAGE))).0
}

// The bytes that blocks take in a pool.
fn taken(work: &Work) -> u64 {
    work.sizes.iter().map(|size| size.next_multiple_of(GRAIN)).sum()
}

// Sizes divided by the smallest power of two with which all blocks fit, with room for what another
// order of allocation wastes, or for what is to be free.
fn fitting(options: &Options, device: &Device) -> anyhow::Result<(Work, u64)> {
    let free = device.usage()?.free;
    let most = match options.free {
        None => free.0 / 5 * 4,
        Some(percent) => free.0.saturating_sub(part(device, percent)),
    };
    let work = |divided_by| Work::ragged(options.blocks as usize, divided_by, options.seed);
    let mut tried = (0..=20).map(|power| 1 << power).map(|divide| (work(divide), divide));
    tried.find(|(work, _)| taken(work) <= most).with_context(|| {
        let (blocks, id) = (options.blocks, device.info().id);
        format!("{blocks} blocks do not fit in the {free} that {id} has free; try fewer --blocks")
    })
}

fn part(device: &Device, percent: u8) -> u64 {
    device.info().total.0 / 100 * u64::from(percent)
}

// Takes memory of the device until only the blocks and the part that is to be free fit in the rest.
fn take_away(options: &Options, device: &Device, work: &Work) -> anyhow::Result<Vec<Chunk>> {
    let Some(percent) = options.free else { return Ok(Vec::new()) };
    let page = device.info().page.0;
    let left = (taken(work) + part(device, percent)).next_multiple_of(page);
    let mut rest = device.usage()?.free.0.saturating_sub(left) / page * page;
    let mut chunks = Vec::new();
    while rest > 0 {
        let chunk = device.create(Bytes(rest.min(CHUNK_MOST)))?;
        rest -= chunk.size().0;
        chunks.push(chunk);
    }
    Ok(chunks)
}

fn grown(work: &Work, progress: &Progress) -> anyhow::Result<Growth> {
    let blocks = work.sizes.len();
    progress.say(format!("allocating and freeing with {blocks} live blocks, as a dry run"));
    let mut visits = Visits::new(&unlimited(), work, false)?;
    let (same_ns, _) = visits.measure(growth_rounds(work), Mode::Same, blocks, progress)?;
    let (hot_ns, _) = visits.measure(GROWTH_ROUNDS_MOST, Mode::Same, HOT, progress)?;
    Ok(Growth { blocks, same_ns, hot_ns })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Same,
    Other,
}

/// A stream whose work is always done, for dry runs.
struct AlwaysDone;

impl Fence for AlwaysDone {
    fn has_passed(&self, _: StreamId) -> bool {
        true
    }

    fn wait(&self, _: StreamId) -> lowtide_device::Result<()> {
        Ok(())
    }
}

/// Live blocks in a pool, and the order in which they are visited.
struct Visits<'a> {
    pool: Pool,
    work: &'a Work,
    stream: StreamId,
    /// The stream that the fence watches.
    _watched: Option<Arc<Stream>>,
    /// The live blocks in the order of the visits, so that the bench spends no time finding one.
    visited: Vec<(Address, Tag)>,
}

impl<'a> Visits<'a> {
    fn new(device: &Device, work: &'a Work, record: bool) -> anyhow::Result<Visits<'a>> {
        let (mut watched, mut fence, mut stream) =
            (None, Arc::new(AlwaysDone) as Arc<dyn Fence>, StreamId(1));
        if device.info().id != DeviceId::DryRun {
            let (own, streams) = (Arc::new(device.stream()?), StreamFence::default());
            stream = streams.watch(&own);
            (watched, fence) = (Some(own), Arc::new(streams));
        }
        let pool = Pool::builder(device).fence(fence).build()?;
        if record {
            pool.start_recording()?;
        }
        let kinds =
            [pool.tag("weights", SleepPolicy::Offload)?, pool.tag("cache", SleepPolicy::Discard)?];
        let mut blocks = Vec::with_capacity(work.sizes.len());
        for (size, tag) in work.sizes.iter().zip(kinds.iter().cycle()) {
            blocks.push((pool.alloc(Bytes(*size), stream, *tag)?, *tag));
        }
        let visited = work.visits.iter().map(|block| blocks[*block as usize]).collect();
        Ok(Visits { pool, work, stream, _watched: watched, visited })
    }

    /// Visits blocks for a while without measuring: a processor that has rested is slow at first.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            for ((address, tag), block) in self.visited.iter_mut().zip(&self.work.visits) {
                self.pool.free(*address, self.stream)?;
                let size = Bytes(self.work.sizes[*block as usize]);
                *address = self.pool.alloc(size, self.stream, *tag)?;
            }
        }
        Ok(())
    }

    /// Visits the first `count` blocks in each round. Returns the median of the rounds in ns per pair,
    /// and the driver calls in all of them.
    fn measure(
        &mut self,
        rounds: u32,
        mode: Mode,
        count: usize,
        progress: &Progress,
    ) -> anyhow::Result<(f64, u64)> {
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
            progress.add(Bytes(sizes.iter().sum()));
        }
        Ok((median(times), self.pool.device().calls() - calls))
    }
}

fn text(figures: &AllocFigures) -> Page {
    let mut page = Page::default();
    let AllocFigures { device, blocks, live_bytes, sizes_divided_by, rounds, .. } = figures;
    page.title(&device.to_string(), "one block freed and another allocated");
    page.row(
        "live",
        &format!("{blocks} blocks, {live_bytes} (sizes of ragged ÷ {sizes_divided_by})"),
    );
    let taken =
        format!("{} taken at most; {} were free", figures.physical_peak_bytes, figures.free_bytes);
    page.row("device", &taken);
    let calls = |count: u64| format!("{count} driver calls in {rounds} rounds");
    page.row(
        "the same size",
        &format!("{:.0} ns per pair; {}", figures.same_ns, calls(figures.same_driver_calls)),
    );
    page.row(
        "another size",
        &format!("{:.0} ns per pair; {}", figures.other_ns, calls(figures.other_driver_calls)),
    );
    for Growth { blocks, same_ns, hot_ns } in &figures.growth {
        let value =
            format!("{same_ns:.0} ns per pair; {hot_ns:.0} ns with {HOT} hot blocks (dry run)");
        page.row(&format!("{blocks} live"), &value);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_done_are_the_bytes_planned() {
        let (work, grown_work) = (Work::ragged(50, 1, 1), Work::ragged(2 * HOT, 1, 1));
        let progress = Progress::of(planned(3, &work, std::slice::from_ref(&grown_work)));
        let mut visits = Visits::new(&unlimited(), &work, false).unwrap();
        for mode in [Mode::Same, Mode::Other] {
            visits.measure(3, mode, work.sizes.len(), &progress).unwrap();
        }
        grown(&grown_work, &progress).unwrap();
        let (done, planned) = progress.counted();
        assert_eq!(done, planned);
    }
}
