//! 200 weight updates with in-place pauses: the usual way reserves more and more memory, with lowtide
//! it stays the same, while a worker's requests keep their keys and values.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use lowtide::device::Bytes;
use lowtide::pool::{Pool, SleepPolicy, Tag};
use lowtide::release::{Mode, OwnedPass, Pauses, Receipt, Resume, Step, Trend};

use super::content::{Content, Loaded};
use super::scenario::Scenario;
use super::setup::Setup;
use super::watch::{Watch, Way};
use crate::text::progress::Progress;

/// The weights that are updated, the keys and values of requests, and the largest update, in units.
pub(super) const UPDATED: [u64; 3] = [4, 2, 2];
const UPDATES: u64 = 200;
/// An update replaces one layer.
const LAYERS: u64 = 8;
/// The worker reads the keys and values of one request at a time, so that it reaches a checkpoint soon.
const REQUESTS: u64 = 32;
/// Work that does not stop within this time does not stop at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// An odd number, from which the sizes of updates follow.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both ways fill weights, requests and buckets, replace a layer at each update, and compare weights and
/// requests at the end. What the worker reads meanwhile does not count.
pub(super) fn planned(setup: &Setup) -> Bytes {
    let [weights, requests, _] = UPDATED.map(|units| setup.units(units).0);
    let layers = weights / LAYERS * UPDATES;
    let buckets: Bytes = bucket_sizes(setup).into_iter().sum();
    Bytes(2 * (2 * (weights + requests) + layers + buckets.0))
}

/// What the updates of one way leave to check.
#[derive(Default)]
struct Updated {
    receipts: Vec<Receipt>,
    /// The number of pauses at which the worker was stopped at a checkpoint.
    parked: u64,
    /// The number of steps that the worker did.
    steps: u64,
    requests_right: bool,
    weights_right: bool,
    trend: Option<Trend>,
}

pub(super) fn run(setup: &Setup, scenario: &mut Scenario) -> anyhow::Result<()> {
    let keep_cache = Resume { empty_cache: false, ..Resume::default() };
    scenario.play(setup, Way::Today, |scenario| {
        let reserved = &mut scenario.today.reserved_bytes;
        run_way(setup, Way::Today, keep_cache, reserved, &mut Updated::default())
    })?;
    let mut updated = Updated::default();
    scenario.play(setup, Way::Lowtide, |scenario| {
        let reserved = &mut scenario.with.reserved_bytes;
        run_way(setup, Way::Lowtide, Resume::default(), reserved, &mut updated)
    })?;

    let (before, today) = (scenario.with.before_bytes, &scenario.today.reserved_bytes);
    let edge = |reserved: Option<&Bytes>| reserved.copied().unwrap_or_default();
    let grown = edge(today.last()).saturating_sub(edge(today.first()));
    let page = setup.device.info().page;
    scenario.check(grown >= page, format!("today reserved memory grew by {grown}"));
    let largest = bucket_sizes(setup).into_iter().fold(Bytes::ZERO, Bytes::max);
    let what = "weights, keys and values, and the largest update";
    scenario.check_peak(setup, before + largest, 1, what);
    let reserved = &scenario.with.reserved_bytes;
    let (least, most) = (edge(reserved.iter().min()), edge(reserved.iter().max()));
    let is_flat = reserved.len() as u64 == UPDATES && least == most;
    let what = format!("reserved memory is the same after each of the {UPDATES} updates: {most}");
    scenario.check(is_flat, what);
    let trend = updated.trend.context("it ran")?;
    let what = format!("the trend does not rise: {} bytes per update", trend.per_update_bytes);
    scenario.check(!trend.rising, what);
    scenario.check_after(setup, before, "as before the first update");
    let steps = updated.steps;
    let what = format!("the worker stopped at a checkpoint at every pause, and did {steps} steps");
    scenario.check(updated.parked == UPDATES, what);
    scenario.check(updated.requests_right, "every byte of the keys and values is right");
    scenario.check(updated.weights_right, "every byte of the weights is that of the last update");
    scenario.receipts = updated.receipts;
    scenario.check_receipts();
    // The last of 200 stands for all.
    scenario.receipts.drain(..scenario.receipts.len().saturating_sub(1));
    Ok(())
}

// The sizes of the updates: they vary, and grow as a run goes on.
fn bucket_sizes(setup: &Setup) -> Vec<Bytes> {
    let (page, most) = (setup.device.info().page, setup.units(UPDATED[2]));
    let pages = most.0 / page.0;
    let size = |update: u64| {
        let so_far = 1 + pages * (update + 1) / UPDATES;
        let varied = (update.wrapping_mul(ODD) >> 32) % so_far;
        Bytes(page.0 * (1 + varied).min(pages))
    };
    (0..UPDATES).map(size).collect()
}

fn run_way<'a>(
    setup: &'a Setup,
    way: Way,
    resume: Resume,
    reserved: &mut Vec<Bytes>,
    updated: &mut Updated,
) -> anyhow::Result<Watch<'a>> {
    let (pool, releaser) = setup.pool()?;
    let pauses = Pauses::new(&releaser);
    let [weights, requests, _] = UPDATED.map(|units| setup.units(units));
    let mut weights = setup.content.load(&pool, Tag::default(), weights, LAYERS)?;
    let cache = pool.tag("kv cache", SleepPolicy::Discard)?;
    let requests = setup.content.load(&pool, cache, requests, REQUESTS)?;
    let content = Content::new(&setup.device, Progress::hidden())?;
    let mut watch = Watch::begin(setup, way)?;
    let enough = AtomicBool::new(false);
    let sizes = bucket_sizes(setup);
    let largest = sizes.iter().zip(0..).max_by_key(|(size, _)| **size).map(|(_, at)| at);
    let update_all = || -> anyhow::Result<()> {
        for (size, update) in sizes.into_iter().zip(0..) {
            if update % 10 == 0 {
                setup.say(format!("updates, {way}: {update} of {UPDATES}"));
            }
            let paused = pauses.pause(Mode::InPlace, PATIENCE)?;
            updated.parked += u64::from(paused.parked() == 1);
            // New weights arrive in a bucket, and replace a layer.
            let bucket = setup.content.load(&pool, Tag::default(), size, 1)?;
            watch.look_at_peak(Some(update) == largest)?;
            setup.content.fill(&pool, &mut weights.blocks[(update % LAYERS) as usize])?;
            drop(bucket);
            updated.receipts.extend(paused.resume(resume).receipt);
            reserved.push(pool.counts().physical);
        }
        Ok(())
    };
    let (steps, requests_stayed) = thread::scope(|scope| {
        // The worker enters before the first pause, so that every pause stops it.
        let pass = releaser.gate().enter().into_owned();
        let step = || work(pass, &content, &pool, &requests, &enough);
        let worker = thread::Builder::new().spawn_scoped(scope, step);
        let worker = worker.context("starting the worker's thread")?;
        let done = update_all();
        // The worker ends even if an update failed.
        enough.store(true, SeqCst);
        let worked = worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?;
        done.and(worked)
    })?;
    let watch = watch.end()?;
    (updated.trend, updated.steps) = (Some(pauses.trend()), steps);
    updated.requests_right = requests_stayed && setup.content.is_right(&pool, &requests)?;
    updated.weights_right = setup.content.is_right(&pool, &weights)?;
    Ok(watch)
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
