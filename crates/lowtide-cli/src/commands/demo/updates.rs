//! Two hundred weight updates with in-place pauses: reserved memory creeps up today, and stays flat
//! with lowtide, while a worker's requests keep their keys and values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use lowtide::{
    Bytes, Mode, Pass, Pauses, Pool, Receipt, Resume, SleepPolicy, Step, Tag, Trend, Verdict,
};

use super::act::Act;
use super::content::{Content, Loaded};
use super::site::Site;
use super::sizes::UPDATED;
use super::watch::{Part, Watch, Way};

const UPDATES: u64 = 200;
/// An update brings one layer anew.
const LAYERS: u64 = 8;
/// Of keys and values: the worker looks at one at a time, so that it comes to a checkpoint soon.
const REQUESTS: u64 = 32;
/// Work that does not stop within this does not stop.
const PATIENCE: Duration = Duration::from_secs(30);
/// Any odd number, to deal the sizes.
const DEAL: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) fn play(site: &Site) -> anyhow::Result<Act> {
    let today = play_way(site, Way::Today, Resume { empty_cache: false })?;
    let with = play_way(site, Way::Lowtide, Resume::default())?;

    let largest = bucket_sizes(site).into_iter().fold(Bytes::ZERO, Bytes::max);
    let needed = with.part.before + largest;
    let mut act = Act::new(
        "updates",
        ("pause, bring weights in, resume; what was cached stays", today.part),
        ("the same pauses; what is cached goes back before the gate opens", with.part),
        needed,
    );
    let grown = Bytes(today.reserved.last().map_or(0, |last| last.0))
        .saturating_sub(today.reserved.first().copied().unwrap_or_default());
    act.claim(grown >= site.device.info().page, format!("today reserved memory grew by {grown}"));
    act.claim_peak(site, 1, "weights, keys and values, and the largest update");
    let (least, most) = (with.reserved.iter().min(), with.reserved.iter().max());
    act.claim(
        with.reserved.len() as u64 == UPDATES && least == most,
        format!(
            "reserved is the same after each of the {UPDATES} updates: {}",
            most.context("none")?
        ),
    );
    let per_update = with.trend.per_update_bytes;
    act.claim(!with.trend.rising, format!("the slope does not rise: {per_update} bytes an update"));
    act.claim_after(site, act.before_bytes, "as before the first update");
    act.claim(
        with.parked == UPDATES,
        format!("the worker stopped where it was at every pause, and did {} steps", with.steps),
    );
    act.claim(with.requests_right, "keys and values untouched, every byte");
    act.claim(with.weights_right, "the weights are the last update's, every byte");
    let released = with.receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    act.claim(released, "each resume gave memory back, says its receipt");
    // Two hundred of them are no reading.
    act.receipts = with.receipts.last().cloned().into_iter().collect();
    (act.reserved_bytes, act.today.reserved_bytes) = (with.reserved, today.reserved);
    Ok(act.judged())
}

// What each update brings along: sizes vary, and grow as a run goes on.
fn bucket_sizes(site: &Site) -> Vec<Bytes> {
    let (page, most) = (site.device.info().page, site.unit.times(UPDATED[2]));
    let pages = most.0 / page.0;
    let size = |update: u64| {
        let so_far = 1 + pages * (update + 1) / UPDATES;
        let dealt = (update.wrapping_mul(DEAL) >> 32) % so_far;
        Bytes(page.0 * (1 + dealt).min(pages))
    };
    (0..UPDATES).map(size).collect()
}

struct Updated {
    part: Part,
    reserved: Vec<Bytes>,
    receipts: Vec<Arc<Receipt>>,
    trend: Trend,
    /// At how many pauses the worker was stopped at a checkpoint.
    parked: u64,
    steps: u64,
    requests_right: bool,
    weights_right: bool,
}

fn play_way(site: &Site, way: Way, resume: Resume) -> anyhow::Result<Updated> {
    let pool = site.pool()?;
    let releaser = site.releaser(&pool);
    let pauses = Pauses::new(&releaser);
    let [weights, requests, _] = UPDATED.map(|units| site.unit.times(units));
    let mut weights = site.content.load(&pool, Tag::default(), weights, LAYERS)?;
    let cache = pool.tag("kv cache", SleepPolicy::Discard)?;
    let requests = site.content.load(&pool, cache, requests, REQUESTS)?;
    let (content, enough) = (Content::new(&site.device)?, AtomicBool::new(false));
    let mut watch = Watch::begin(site, way)?;
    let mut run = Run {
        site,
        pool: &pool,
        way,
        resume,
        reserved: Vec::new(),
        receipts: Vec::new(),
        parked: 0,
    };
    let (steps, requests_stayed) = thread::scope(|scope| {
        // In before the first pause: so it is there to be stopped.
        let pass = releaser.gate().enter().into_owned();
        let worker = scope.spawn(|| work(pass, &content, &pool, &requests, &enough));
        // Whatever becomes of the updates, the worker ends.
        let ends = Ends(&enough);
        let updated = run.updates(&pauses, &mut weights, &mut watch);
        drop(ends);
        let worked = worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))?;
        updated.and(worked)
    })?;
    let part = watch.end()?;
    let requests_right = requests_stayed && site.content.is_right(&pool, &requests)?;
    let weights_right = site.content.is_right(&pool, &weights)?;
    let Run { reserved, receipts, parked, .. } = run;
    let trend = pauses.trend();
    Ok(Updated { part, reserved, receipts, trend, parked, steps, requests_right, weights_right })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

struct Run<'a> {
    site: &'a Site,
    pool: &'a Pool,
    way: Way,
    resume: Resume,
    reserved: Vec<Bytes>,
    receipts: Vec<Arc<Receipt>>,
    parked: u64,
}

impl Run<'_> {
    fn updates(
        &mut self,
        pauses: &Pauses,
        weights: &mut Loaded,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let sizes = bucket_sizes(self.site);
        let largest = sizes.iter().zip(0..).max_by_key(|(size, _)| **size).map(|(_, at)| at);
        for (size, update) in sizes.into_iter().zip(0..) {
            if update % 10 == 0 {
                self.site.say(format!("updates, {}: {update} of {UPDATES}", self.way));
            }
            let paused = pauses.pause(Mode::InPlace, PATIENCE)?;
            self.parked += u64::from(paused.parked() == 1);
            self.update(weights, size, update, watch, Some(update) == largest)?;
            self.receipts.extend(paused.resume(self.resume));
            self.reserved.push(self.pool.counts().physical);
        }
        Ok(())
    }

    // New weights arrive in a bucket, and are put in their place.
    fn update(
        &self,
        weights: &mut Loaded,
        size: Bytes,
        update: u64,
        watch: &mut Watch<'_>,
        is_largest: bool,
    ) -> anyhow::Result<()> {
        let (content, layer) = (&self.site.content, (update % LAYERS) as usize);
        let bucket = content.load(self.pool, Tag::default(), size, 1)?;
        watch.look_at_peak(is_largest)?;
        content.fill(self.pool, &mut weights.blocks[layer])?;
        drop(bucket);
        Ok(())
    }
}

// Requests that run: each step reads some of their keys and values, then comes to a checkpoint.
fn work(
    mut pass: Pass<'static>,
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
