//! An idle server: the usual way keeps everything on the device. With lowtide the server sleeps down to
//! the floor; on a GPU it then leaves the device altogether. The next task finds every byte at its address.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use lowtide::SystemClock;
use lowtide::device::{Address, Bytes};
use lowtide::pool::{Pool, SleepPolicy};
use lowtide::release::{Idle, IdleOptions, Idling, Receipt, Tick, Verdict};

use super::away::{self, Away};
use super::content::Loaded;
use super::samples;
use super::scenario::Scenario;
use super::setup::Setup;
use super::sizes::IDLE;
use super::watch::{Observed, Watch, Way};

const LAYERS: u64 = 8;
/// The idle time before memory is freed.
const QUIET: Duration = Duration::from_millis(200);
/// If the server is not idle after this time, something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two questions to the policy.
const TICK: Duration = Duration::from_millis(10);

/// Returns the bytes that are filled and compared.
pub(super) fn planned(setup: &Setup) -> Bytes {
    // Both ways fill weights and cache; lowtide compares the weights after the wake.
    let [weights, cache] = IDLE;
    setup.unit.times(weights * 3 + cache * 2)
}

pub(super) fn run(setup: &Setup) -> anyhow::Result<Scenario> {
    let (today, samples_today) = samples::take(setup, Way::Today, || today(setup))?;
    let (slept, samples) = samples::take(setup, Way::Lowtide, || with_lowtide(setup))?;
    let Slept { observed, start, receipt, suspended, woken, right, addresses_stayed } = slept;

    let needed = start + IDLE.iter().map(|units| setup.unit.times(*units)).sum();
    let mut scenario = Scenario::new(
        "idle",
        ("an idle server keeps all its memory", today, samples_today),
        ("after a short idle time the weights sleep and the cache is discarded", observed, samples),
        needed,
    );
    let stays = scenario.today.after_bytes;
    scenario.check(
        setup.same(stays, scenario.today.before_bytes),
        format!("today {stays} stay in use"),
    );
    scenario.check_peak(setup, LAYERS + 1, "weights and cache");
    scenario.check(receipt.verdict == Verdict::Released, "the idle release reached its target");
    check_floor(setup, &mut scenario);
    if let Some(left) = suspended.after_bytes {
        scenario.check(left == Bytes::ZERO, format!("{left} in use while it is suspended"));
    }
    scenario.suspended = Some(suspended);
    let before = scenario.before_bytes;
    scenario.check(
        setup.same_in_blocks(woken, before, LAYERS + 1)
            && woken <= scenario.peak_bytes + setup.slack(),
        format!("the next task wakes the server: {woken} in use again"),
    );
    scenario.check(
        addresses_stayed && right,
        "every byte of the weights is right, at the same addresses",
    );
    scenario.receipts = vec![receipt];
    Ok(scenario.judged())
}

fn check_floor(setup: &Setup, scenario: &mut Scenario) {
    let after = scenario.after_bytes;
    let Some((most, floor)) = setup.floor_most().zip(setup.floor.bytes) else {
        let why = setup.floor.reason.as_deref().unwrap_or("it was not measured");
        let what = format!("{after} in use while idle, and the floor is not known: {why}");
        return scenario.check(false, what);
    };
    let what = if setup.slack() == Bytes::ZERO {
        format!("{after} in use while idle; the floor is {floor}")
    } else {
        format!(
            "{after} in use while idle; a bare context uses {floor}, with its growth up to {most}"
        )
    };
    scenario.check(after <= most, what);
}

fn today(setup: &Setup) -> anyhow::Result<Observed> {
    setup.say("idle, today");
    let pool = setup.pool()?;
    let served = Served::load(setup, &pool)?;
    let watch = Watch::begin(setup, Way::Today)?;
    thread::sleep(QUIET);
    let observed = watch.end();
    drop(served);
    observed
}

struct Served {
    weights: Loaded,
    _cache: Loaded,
}

impl Served {
    fn load(setup: &Setup, pool: &Pool) -> anyhow::Result<Served> {
        let kept = pool.tag("weights", SleepPolicy::Offload)?;
        let lost = pool.tag("cache", SleepPolicy::Discard)?;
        let [weights, cache] = IDLE.map(|units| setup.unit.times(units));
        let weights = setup.load(pool, kept, weights, LAYERS)?;
        Ok(Served { weights, _cache: setup.load(pool, lost, cache, 1)? })
    }

    fn addresses(&self) -> Vec<Address> {
        self.weights.blocks.iter().map(|filled| filled.block.address()).collect()
    }
}

struct Slept {
    observed: Observed,
    /// The memory in use before anything was loaded.
    start: Bytes,
    receipt: Receipt,
    suspended: Away,
    /// The memory in use after the wake.
    woken: Bytes,
    right: bool,
    addresses_stayed: bool,
}

fn with_lowtide(setup: &Setup) -> anyhow::Result<Slept> {
    setup.say("idle, with lowtide");
    let start = setup.settled()?;
    let pool = setup.pool()?;
    let releaser = setup.releaser(&pool);
    let options = IdleOptions { enabled: true, after: QUIET, ..IdleOptions::default() };
    let idle = Idle::new(options, Arc::new(SystemClock::default()));
    let idling = Idling::new(&releaser, &idle).to(setup.floor_target());

    let task = idling.work()?;
    let served = Served::load(setup, &pool)?;
    let addresses = served.addresses();
    let mut watch = Watch::begin(setup, Way::Lowtide)?;
    drop(task);
    let receipt = released(&idling)?;
    let after = watch.hold("after")?;
    let suspended = away::go(setup);
    let task = idling.work()?;
    let woken = watch.hold("awake")?;
    let observed = watch.ended_with(after);
    let right = setup.is_right(&pool, &served.weights)?;
    let addresses_stayed = served.addresses() == addresses;
    drop(task);
    Ok(Slept { observed, start, receipt, suspended, woken, right, addresses_stayed })
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
