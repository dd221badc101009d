//! An idle server: the usual way keeps everything on the device. With lowtide the server sleeps down to
//! the floor; on a GPU it then leaves the device altogether. The next task finds every byte at its address.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use lowtide::SystemClock;
use lowtide::device::{Address, Bytes};
use lowtide::pool::{Pool, SleepPolicy};
use lowtide::release::{Idle, IdleOptions, Idling, Receipt, Tick};

use super::content::Loaded;
use super::scenario::Scenario;
use super::setup::Setup;
use super::suspended::Suspension;
use super::watch::{Watch, Way};

/// The memory of an idle server, in units: weights that are kept and a cache that is discarded.
pub(super) const SERVER: [u64; 2] = [12, 4];
const LAYERS: u64 = 8;
/// The idle time before memory is freed.
const QUIET: Duration = Duration::from_millis(200);
/// If the server is not idle after this time, something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two questions to the policy.
const TICK: Duration = Duration::from_millis(10);

/// Both ways fill weights and cache; lowtide compares the weights after the wake.
pub(super) fn planned(setup: &Setup) -> Bytes {
    let [weights, cache] = SERVER;
    setup.units(weights * 3 + cache * 2)
}

pub(super) fn run(setup: &Setup, scenario: &mut Scenario) -> anyhow::Result<()> {
    scenario.play(setup, Way::Today, |_| {
        setup.say("idle, today".to_owned());
        let (pool, _) = setup.pool()?;
        let _served = load(setup, &pool)?;
        let watch = Watch::begin(setup, Way::Today)?;
        thread::sleep(QUIET);
        watch.end()
    })?;
    let (start, mut woken, mut is_right) = (setup.settled()?, Bytes::ZERO, false);
    scenario.play(setup, Way::Lowtide, |scenario| {
        setup.say("idle, with lowtide".to_owned());
        let (pool, releaser) = setup.pool()?;
        let options = IdleOptions { enabled: true, after: QUIET, ..IdleOptions::default() };
        let idle = Idle::new(options, Arc::new(SystemClock::default()));
        let idling = Idling::new(&releaser, &idle).to(setup.floor_target());
        let task = idling.work()?;
        let [weights, _cache] = load(setup, &pool)?;
        let loaded_at = addresses(&weights);
        let mut watch = Watch::begin(setup, Way::Lowtide)?;
        drop(task);
        scenario.receipts.push(released(&idling)?);
        watch.after = watch.hold("after")?;
        scenario.suspended = Some(Suspension::try_out(setup.device.id()));
        let _task = idling.work()?;
        woken = watch.hold("awake")?;
        is_right = setup.content.is_right(&pool, &weights)? && addresses(&weights) == loaded_at;
        Ok(watch)
    })?;

    let stays = scenario.today.after_bytes;
    let is_same = setup.same(stays, scenario.today.before_bytes);
    scenario.check(is_same, format!("today {stays} stay in use"));
    let needed = start + setup.units(SERVER.iter().sum());
    scenario.check_peak(setup, needed, LAYERS + 1, "weights and cache");
    let is_released = scenario.receipts[0].verdict.is_proved();
    scenario.check(is_released, "the idle release reached its target");
    check_floor(setup, scenario);
    if let Some(left) = scenario.suspended.as_ref().and_then(|it| it.after_bytes) {
        scenario.check(left == Bytes::ZERO, format!("{left} in use while it is suspended"));
    }
    let is_back = setup.same_in_blocks(woken, scenario.with.before_bytes, LAYERS + 1)
        && woken <= scenario.with.peak_bytes + setup.slack();
    scenario.check(is_back, format!("the next task wakes the server: {woken} in use again"));
    scenario.check(is_right, "every byte of the weights is right, at the same addresses");
    Ok(())
}

fn check_floor(setup: &Setup, scenario: &mut Scenario) {
    let after = scenario.with.after_bytes;
    let (passed, what) = match setup.floor_most().zip(setup.floor.bytes) {
        None => (false, format!("and the floor is not known: {}", setup.floor.reason)),
        Some((most, floor)) if most == floor => (after <= most, format!("the floor is {floor}")),
        Some((most, floor)) => {
            (after <= most, format!("a bare context uses {floor}, with its growth up to {most}"))
        }
    };
    let mark = if setup.floor.bytes.is_some() { ";" } else { "," };
    scenario.check(passed, format!("{after} in use while idle{mark} {what}"));
}

fn load(setup: &Setup, pool: &Pool) -> anyhow::Result<[Loaded; 2]> {
    let kept = pool.tag("weights", SleepPolicy::Offload)?;
    let lost = pool.tag("cache", SleepPolicy::Discard)?;
    let [weights, cache] = SERVER.map(|units| setup.units(units));
    let weights = setup.content.load(pool, kept, weights, LAYERS)?;
    Ok([weights, setup.content.load(pool, lost, cache, 1)?])
}

fn addresses(loaded: &Loaded) -> Vec<Address> {
    loaded.blocks.iter().map(|filled| filled.block.address()).collect()
}

// Asks the policy again and again, as the timer of a server does.
fn released(idling: &Idling) -> anyhow::Result<Receipt> {
    let began = Instant::now();
    loop {
        match idling.tick() {
            Tick::Released(receipt) => return Ok(receipt),
            Tick::No(decision) => {
                let waited = began.elapsed();
                ensure!(waited < PATIENCE, "not idle after {} s: {decision:?}", waited.as_secs());
                thread::sleep(TICK);
            }
        }
    }
}
