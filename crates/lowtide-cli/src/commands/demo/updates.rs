//! 200 weight updates with in-place pauses: the usual way reserves more and more memory, with lowtide
//! it stays the same, while a worker's requests keep their keys and values.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use lowtide::device::Bytes;
use lowtide::pool::{Pool, SleepPolicy, Tag};
use lowtide::release::{Mode, OwnedPass, Pauses, Receipt, Resume, Step, Trend, Verdict};

use super::content::{Content, Loaded};
use super::samples;
use super::scenario::Scenario;
use super::setup::Setup;
use super::sizes::UPDATED;
use super::watch::{Observed, Watch, Way};

const UPDATES: u64 = 200;
/// An update replaces one layer.
const LAYERS: u64 = 8;
/// The worker reads the keys and values of one request at a time, so that it reaches a checkpoint soon.
const REQUESTS: u64 = 32;
/// Work that does not stop within this time does not stop at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// An odd number, from which the sizes of updates follow.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the bytes that are filled and compared, except for what the worker reads meanwhile.
pub(super) fn planned(setup: &Setup) -> Bytes {
    // Both ways fill weights, requests and buckets, replace a layer at each update, and compare
    // weights and requests at the end.
    let [weights, requests, _] = UPDATED.map(|units| setup.unit.times(units).0);
    let layers = weights / LAYERS * UPDATES;
    let buckets: Bytes = bucket_sizes(setup).into_iter().sum();
    Bytes(2 * (2 * (weights + requests) + layers + buckets.0))
}

pub(super) fn run(setup: &Setup) -> anyhow::Result<Scenario> {
    let way = |way, resume| samples::take(setup, way, || run_way(setup, way, resume));
    let (today, samples_today) =
        way(Way::Today, Resume { empty_cache: false, ..Resume::default() })?;
    let (with, samples) = way(Way::Lowtide, Resume::default())?;

    let largest = bucket_sizes(setup).into_iter().fold(Bytes::ZERO, Bytes::max);
    let needed = with.observed.before + largest;
    let mut scenario = Scenario::new(
        "updates",
        ("pause, update, resume; cached memory stays", today.observed, samples_today),
        ("the same pauses; cached memory is freed before the gate opens", with.observed, samples),
        needed,
    );
    let grown = Bytes(today.reserved.last().map_or(0, |last| last.0))
        .saturating_sub(today.reserved.first().copied().unwrap_or_default());
    scenario
        .check(grown >= setup.device.info().page, format!("today reserved memory grew by {grown}"));
    scenario.check_peak(setup, 1, "weights, keys and values, and the largest update");
    let (least, most) = (with.reserved.iter().min(), with.reserved.iter().max());
    scenario.check(
        with.reserved.len() as u64 == UPDATES && least == most,
        format!(
            "reserved memory is the same after each of the {UPDATES} updates: {}",
            most.context("none")?
        ),
    );
    let per_update = with.trend.per_update_bytes;
    scenario.check(
        !with.trend.rising,
        format!("the trend does not rise: {per_update} bytes per update"),
    );
    scenario.check_after(setup, scenario.before_bytes, "as before the first update");
    scenario.check(
        with.parked == UPDATES,
        format!("the worker stopped at a checkpoint at every pause, and did {} steps", with.steps),
    );
    scenario.check(with.requests_right, "every byte of the keys and values is right");
    scenario.check(with.weights_right, "every byte of the weights is that of the last update");
    let released = with.receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    scenario.check(released, "every receipt says released");
    // The last of 200 stands for all.
    scenario.receipts = with.receipts.last().cloned().into_iter().collect();
    (scenario.reserved_bytes, scenario.today.reserved_bytes) = (with.reserved, today.reserved);
    Ok(scenario.judged())
}

// The sizes of the updates: they vary, and grow as a run goes on.
fn bucket_sizes(setup: &Setup) -> Vec<Bytes> {
    let (page, most) = (setup.device.info().page, setup.unit.times(UPDATED[2]));
    let pages = most.0 / page.0;
    let size = |update: u64| {
        let so_far = 1 + pages * (update + 1) / UPDATES;
        let varied = (update.wrapping_mul(ODD) >> 32) % so_far;
        Bytes(page.0 * (1 + varied).min(pages))
    };
    (0..UPDATES).map(size).collect()
}

struct Updated {
    observed: Observed,
    reserved: Vec<Bytes>,
    receipts: Vec<Receipt>,
    trend: Trend,
    /// The number of pauses at which the worker was stopped at a checkpoint.
    parked: u64,
    steps: u64,
    requests_right: bool,
    weights_right: bool,
}

fn run_way(setup: &Setup, way: Way, resume: Resume) -> anyhow::Result<Updated> {
    let pool = setup.pool()?;
    let releaser = setup.releaser(&pool);
    let pauses = Pauses::new(&releaser);
    let [weights, requests, _] = UPDATED.map(|units| setup.unit.times(units));
    let mut weights = setup.load(&pool, Tag::default(), weights, LAYERS)?;
    let cache = pool.tag("kv cache", SleepPolicy::Discard)?;
    let requests = setup.load(&pool, cache, requests, REQUESTS)?;
    let (content, enough) = (Content::new(&setup.device)?, AtomicBool::new(false));
    let mut watch = Watch::begin(setup, way)?;
    let mut run = Run {
        setup,
        pool: &pool,
        way,
        resume,
        reserved: Vec::new(),
        receipts: Vec::new(),
        parked: 0,
    };
    let (steps, requests_stayed) = thread::scope(|scope| {
        // The worker enters before the first pause, so that every pause stops it.
        let pass = releaser.gate().enter().into_owned();
        let step = || work(pass, &content, &pool, &requests, &enough);
        let worker = thread::Builder::new().spawn_scoped(scope, step);
        let worker = worker.context("starting the worker's thread")?;
        // The worker ends even if an update fails.
        let ends = Ends(&enough);
        let updated = run.updates(&pauses, &mut weights, &mut watch);
        drop(ends);
        let worked = worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?;
        updated.and(worked)
    })?;
    let observed = watch.end()?;
    let requests_right = requests_stayed && setup.is_right(&pool, &requests)?;
    let weights_right = setup.is_right(&pool, &weights)?;
    let Run { reserved, receipts, parked, .. } = run;
    let trend = pauses.trend();
    Ok(Updated {
        observed,
        reserved,
        receipts,
        trend,
        parked,
        steps,
        requests_right,
        weights_right,
    })
}

/// Tells the worker to end when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

struct Run<'a> {
    setup: &'a Setup,
    pool: &'a Pool,
    way: Way,
    resume: Resume,
    reserved: Vec<Bytes>,
    receipts: Vec<Receipt>,
    parked: u64,
}

impl Run<'_> {
    fn updates(
        &mut self,
        pauses: &Pauses,
        weights: &mut Loaded,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let sizes = bucket_sizes(self.setup);
        let largest = sizes.iter().zip(0..).max_by_key(|(size, _)| **size).map(|(_, at)| at);
        for (size, update) in sizes.into_iter().zip(0..) {
            if update % 10 == 0 {
                self.setup.say(format!("updates, {}: {update} of {UPDATES}", self.way));
            }
            let paused = pauses.pause(Mode::InPlace, PATIENCE)?;
            self.parked += u64::from(paused.parked() == 1);
            self.update(weights, size, update, watch, Some(update) == largest)?;
            self.receipts.extend(paused.resume(self.resume).receipt);
            self.reserved.push(self.pool.counts().physical);
        }
        Ok(())
    }

    // New weights arrive in a bucket, and replace a layer.
    fn update(
        &self,
        weights: &mut Loaded,
        size: Bytes,
        update: u64,
        watch: &mut Watch<'_>,
        is_largest: bool,
    ) -> anyhow::Result<()> {
        let layer = (update % LAYERS) as usize;
        let bucket = self.setup.load(self.pool, Tag::default(), size, 1)?;
        watch.look_at_peak(is_largest)?;
        self.setup.fill(self.pool, &mut weights.blocks[layer])?;
        drop(bucket);
        Ok(())
    }
}

// Each step reads the keys and values of a request, then reaches a checkpoint.
fn work(
    mut pass: OwnedPass,
    content: &Content,
    pool: &Pool,
    requests: &Loaded,
    enough: &AtomicBool,
) -> anyhow::Result<(u64, bool)> {
    let (mut steps, mut right) = (0, true);
    for request in requests.blocks.iter().cycle() {
        if enough.load(SeqCst) {
            break;
        }
        right &= content.holds(pool, request)?;
        steps += 1;
        ensure!(pass.checkpoint() == Step::Go, "the worker was told to end");
    }
    Ok((steps, right))
}
