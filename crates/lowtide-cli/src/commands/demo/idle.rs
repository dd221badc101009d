//! Work, then nobody: everything stays on the device today; with lowtide it goes to sleep down to
//! the floor, and the next task finds every byte where it was.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use lowtide::{
    Address, Bytes, Idle, IdleOptions, Idling, Pool, Receipt, SleepPolicy, SystemClock, Tick,
    Verdict,
};

use super::act::Act;
use super::content::Loaded;
use super::site::Site;
use super::sizes::IDLE;
use super::watch::{Part, Watch, Way};

const LAYERS: u64 = 8;
/// How long nobody works before memory goes.
const QUIET: Duration = Duration::from_millis(200);
/// What takes longer is not idle: something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the policy is asked.
const LOOK: Duration = Duration::from_millis(10);

pub(super) fn play(site: &Site) -> anyhow::Result<Act> {
    let today = today(site)?;
    let Slept { part, start, receipt, woken, right, addresses_stayed } = with_lowtide(site)?;

    let needed = start + IDLE.iter().map(|units| site.unit.times(*units)).sum();
    let mut act = Act::new(
        "idle",
        ("a server keeps everything while nobody asks", today),
        ("when nobody asks for a while, weights sleep and the cache is given up", part),
        needed,
    );
    let stays = act.today.after_bytes;
    act.claim(site.same(stays, act.today.before_bytes), format!("today {stays} stay in use"));
    act.claim_peak(site, LAYERS + 1, "weights and cache");
    act.claim(receipt.verdict == Verdict::Released, "the idle release reached its target");
    claim_floor(site, &mut act);
    let before = act.before_bytes;
    act.claim(
        site.same_in_blocks(woken, before, LAYERS + 1) && woken <= act.peak_bytes + site.slack(),
        format!("the next task wakes it: {woken} in use again"),
    );
    act.claim(
        addresses_stayed && right,
        "at the same addresses, every byte of the weights is right",
    );
    act.receipts = vec![receipt];
    Ok(act.judged())
}

fn claim_floor(site: &Site, act: &mut Act) {
    let after = act.after_bytes;
    let Some((most, floor)) = site.floor_most().zip(site.floor.bytes) else {
        let why = site.floor.reason.as_deref().unwrap_or("it was not measured");
        return act
            .claim(false, format!("{after} in use while idle, and no floor is known: {why}"));
    };
    let what = if site.slack() == Bytes::ZERO {
        format!("{after} in use while idle: the floor, {floor}")
    } else {
        format!(
            "{after} in use while idle: up to {most} are a bare context, {floor}, and its growth"
        )
    };
    act.claim(after <= most, what);
}

fn today(site: &Site) -> anyhow::Result<Part> {
    site.say("idle, today");
    let pool = site.pool()?;
    let served = Served::load(site, &pool)?;
    let watch = Watch::begin(site, Way::Today)?;
    thread::sleep(QUIET);
    let part = watch.end();
    drop(served);
    part
}

struct Served {
    weights: Loaded,
    _cache: Loaded,
}

impl Served {
    fn load(site: &Site, pool: &Pool) -> anyhow::Result<Served> {
        let kept = pool.tag("weights", SleepPolicy::Offload)?;
        let lost = pool.tag("cache", SleepPolicy::Discard)?;
        let [weights, cache] = IDLE.map(|units| site.unit.times(units));
        let weights = site.content.load(pool, kept, weights, LAYERS)?;
        Ok(Served { weights, _cache: site.content.load(pool, lost, cache, 1)? })
    }

    fn addresses(&self) -> Vec<Address> {
        self.weights.blocks.iter().map(|filled| filled.block.address()).collect()
    }
}

struct Slept {
    part: Part,
    /// In use before anything was loaded.
    start: Bytes,
    receipt: Arc<Receipt>,
    /// In use when the next task has begun.
    woken: Bytes,
    right: bool,
    addresses_stayed: bool,
}

fn with_lowtide(site: &Site) -> anyhow::Result<Slept> {
    site.say("idle, with lowtide");
    let start = site.settled()?;
    let pool = site.pool()?;
    let releaser = site.releaser(&pool);
    let options = IdleOptions { enabled: true, after: QUIET, ..IdleOptions::default() };
    let idle = Idle::new(options, Arc::new(SystemClock::default()));
    let idling = Idling::new(&releaser, &idle).to(site.floor_target());

    let task = idling.work()?;
    let served = Served::load(site, &pool)?;
    let addresses = served.addresses();
    let watch = Watch::begin(site, Way::Lowtide)?;
    drop(task);
    let receipt = released(&idling)?;
    let part = watch.end()?;
    let task = idling.work()?;
    let woken = site.in_use()?;
    let right = site.content.is_right(&pool, &served.weights)?;
    let addresses_stayed = served.addresses() == addresses;
    drop(task);
    Ok(Slept { part, start, receipt, woken, right, addresses_stayed })
}

// As a server's timer does, until it is time.
fn released(idling: &Idling) -> anyhow::Result<Arc<Receipt>> {
    let began = Instant::now();
    loop {
        match idling.tick() {
            Tick::Released(receipt) => return Ok(receipt),
            Tick::No(decision) => {
                let waited = began.elapsed();
                ensure!(waited < PATIENCE, "not idle after {} s: {decision:?}", waited.as_secs());
                thread::sleep(LOOK);
            }
        }
    }
}
