//! 200 weight updates with in-place pauses: the usual way reserves more and more memory, with lowtide
//! it stays the same, while a worker's requests keep their keys and values.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use anyhow::ensure;
use lowtide::device::Bytes;
use lowtide::pool::Tag;
use lowtide::release::{Mode, Pauses, Resume, Step};

use super::scenario::{Play, Size, Way, beside};
use super::setup::{Setup, content};

/// The weights that are updated and the keys and values of requests, in units and blocks.
const UPDATED: [Size; 2] = [(4, LAYERS), (2, REQUESTS)];
/// The largest update, in units.
const LARGEST: u64 = 2;
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
    let [weights, requests] = UPDATED.map(|(units, _)| setup.units(units).0);
    let layers = weights / LAYERS * UPDATES;
    let buckets: Bytes = bucket_sizes(setup).into_iter().sum();
    Bytes(2 * (2 * (weights + requests) + layers + buckets.0))
}

pub(super) fn run(play: &mut Play<'_>) -> anyhow::Result<()> {
    let Play { setup, pool, releaser, .. } = *play;
    let pauses = Pauses::new(releaser);
    let [mut weights, requests] = play.load_server(UPDATED)?;
    let before = play.begin()?;
    let buckets = bucket_sizes(setup);
    let largest = buckets.iter().copied().max().unwrap_or_default();
    let peak = buckets.iter().rposition(|size| *size == largest);
    let resume = Resume { empty_cache: play.way == Way::Lowtide, ..Resume::default() };
    let mut parked = 0;
    let update_all = || -> anyhow::Result<()> {
        for (size, update) in buckets.into_iter().zip(0..) {
            play.say(&format!("{update} of {UPDATES}"));
            let paused = pauses.pause(Mode::InPlace, PATIENCE)?;
            parked += u64::from(paused.parked() == 1);
            // New weights arrive in a bucket, and replace a layer.
            let bucket = setup.content.block(pool, Tag::default(), size)?;
            play.look(Some(update) == peak)?;
            setup.content.fill(&mut weights[update % LAYERS as usize])?;
            drop(bucket);
            play.scenario.receipts.extend(paused.resume(resume).receipt);
            play.figures().reserved_bytes.push(pool.counts().physical);
        }
        Ok(())
    };
    // The worker enters before the first pause, so that every pause stops it. Each of its steps reads the
    // keys and values of a request, then reaches a checkpoint.
    let mut pass = releaser.gate().enter().into_owned();
    let own_content = content(&setup.device)?;
    let work = |enough: &AtomicBool| -> anyhow::Result<(u64, bool)> {
        let (mut steps, mut is_right) = (0, true);
        for request in requests.iter().cycle().take_while(|_| !enough.load(SeqCst)) {
            is_right &= own_content.is_right([request])?;
            steps += 1;
            ensure!(pass.checkpoint() == Step::Go, "the worker was told to end");
        }
        Ok((steps, is_right))
    };
    let (steps, requests_stayed) = beside(work, update_all)?;
    play.end()?;
    let requests_right = requests_stayed && setup.content.is_right(&requests)?;
    let weights_right = setup.content.is_right(&weights)?;
    if play.way == Way::Today {
        // Only the receipts of lowtide count.
        play.scenario.receipts.clear();
        return Ok(());
    }

    let today = &play.scenario.today.reserved_bytes;
    let edge = |reserved: Option<&Bytes>| reserved.copied().unwrap_or_default();
    let grown = edge(today.last()).saturating_sub(edge(today.first()));
    let has_grown = grown >= setup.device.info().page;
    play.check(has_grown, format!("today reserved memory grew by {grown}"));
    play.check_peak(before + largest, 1, "weights, keys and values, and the largest update");
    let reserved = &play.scenario.with.reserved_bytes;
    let (least, most) = (edge(reserved.iter().min()), edge(reserved.iter().max()));
    let is_flat = reserved.len() as u64 == UPDATES && least == most;
    let what = format!("reserved memory is the same after each of the {UPDATES} updates: {most}");
    play.check(is_flat, what);
    let trend = pauses.trend();
    let what = format!("the trend does not rise: {} bytes per update", trend.per_update_bytes);
    play.check(!trend.rising, what);
    play.check_after(before, "as before the first update");
    let what = format!("the worker stopped at a checkpoint at every pause, and did {steps} steps");
    play.check(parked == UPDATES, what);
    play.check(requests_right, "every byte of the keys and values is right");
    play.check(weights_right, "every byte of the weights is that of the last update");
    play.check_receipts();
    // The last of 200 stands for all.
    play.scenario.receipts.drain(..play.scenario.receipts.len().saturating_sub(1));
    Ok(())
}

// The sizes of the updates: they vary, and grow as a run goes on.
fn bucket_sizes(setup: &Setup) -> Vec<Bytes> {
    let (page, most) = (setup.device.info().page, setup.units(LARGEST));
    let pages = most.0 / page.0;
    let size = |update: u64| {
        let so_far = 1 + pages * (update + 1) / UPDATES;
        let varied = (update.wrapping_mul(ODD) >> 32) % so_far;
        Bytes(page.0 * (1 + varied).min(pages))
    };
    (0..UPDATES).map(size).collect()
}
