//! A shutdown while a wrapper holds the weights: the usual way frees nothing. With lowtide the receipt
//! names the wrapper; once it has let go, the memory is free while the runner is kept.

use std::sync::Arc;

use lowtide::device::Bytes;
use lowtide::pool::{Pool, SleepPolicy};
use lowtide::release::{Lent, Owned, Plan, Receipt, Releaser, Verdict};

use super::content::Loaded;
use super::samples;
use super::scenario::Scenario;
use super::setup::Setup;
use super::sizes::RUNNER;
use super::watch::{Observed, Watch, Way};

const LAYERS: u64 = 4;
/// The unregistered wrapper: hooks on two layers, each of which refers to the whole model.
const HOOKS: usize = 2;
const HOLDER: &str = "profiler.hooks";
const HELD: &str = "runner.model";

/// Returns the bytes that are filled.
pub(super) fn planned(setup: &Setup) -> Bytes {
    setup.unit.times(RUNNER.iter().sum::<u64>() * 2)
}

pub(super) fn run(setup: &Setup) -> anyhow::Result<Scenario> {
    let (today, samples_today) = samples::take(setup, Way::Today, || today(setup))?;
    let (down, samples) = samples::take(setup, Way::Lowtide, || with_lowtide(setup))?;
    let Down { observed, start, plan, pinned, freed, kept } = down;

    let needed = start + RUNNER.iter().map(|units| setup.unit.times(*units)).sum();
    let mut scenario = Scenario::new(
        "shutdown",
        (
            "the model is dropped and the allocator's cache emptied; a wrapper still refers to the weights",
            today,
            samples_today,
        ),
        (
            "wrappers are dropped first; remaining holders are named; the runner is kept",
            observed,
            samples,
        ),
        needed,
    );
    let stays = scenario.today.after_bytes;
    scenario.check(
        setup.same(stays, scenario.today.before_bytes),
        format!("today {stays} stay in use, as if nothing had been dropped"),
    );
    scenario.check_peak(setup, LAYERS + RUNNER.len() as u64, "model, cache and buffers");
    let order: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    let place = |name| order.iter().position(|step| *step == name);
    let first = place("runner.pooling").is_some_and(|wrapper| Some(wrapper) < place(HELD));
    scenario
        .check(first, format!("wrappers are dropped before what they wrap: {}", order.join(", ")));
    let named =
        pinned.holders.iter().any(|it| it.path == HOLDER && it.holds == HELD && it.count == HOOKS);
    scenario.check(
        named && pinned.holders.len() == 1 && pinned.verdict == Verdict::Pinned,
        format!("the first receipt says pinned: {HOLDER} holds {HELD} with {HOOKS} references"),
    );
    scenario.check(
        freed.verdict == Verdict::Released && freed.holders.is_empty(),
        format!("once {HOLDER} has let go, the second receipt says released"),
    );
    scenario.check(kept, "the runner is kept, and empty");
    scenario.check_after(setup, start, "as before the runner was created");
    scenario.holders.clone_from(&pinned.holders);
    scenario.plan = plan.steps;
    scenario.receipts = vec![pinned, freed];
    Ok(scenario.judged())
}

fn today(setup: &Setup) -> anyhow::Result<Observed> {
    struct Runner {
        model: Option<Arc<Loaded>>,
        _others: [Loaded; 2],
    }
    setup.say("shutdown, today");
    let pool = setup.pool()?;
    let [model, others @ ..] = load(setup, &pool)?;
    let mut runner = Runner { model: Some(Arc::new(model)), _others: others };
    let profiler = runner.model.clone();
    let watch = Watch::begin(setup, Way::Today)?;
    runner.model = None;
    pool.trim(Bytes::ZERO)?;
    let observed = watch.end();
    drop((profiler, runner));
    observed
}

struct Runner {
    model: Owned<Loaded>,
    cache: Owned<Loaded>,
    pooling: Owned<Pooling>,
}

/// A wrapper that is registered as a borrower of the model.
struct Pooling {
    model: Lent<Loaded>,
    buffers: Loaded,
}

impl Runner {
    fn start(setup: &Setup, pool: &Pool, releaser: &Releaser) -> anyhow::Result<Runner> {
        let [model, cache, buffers] = load(setup, pool)?;
        let owners = releaser.owners();
        let model = owners.own(HELD, model).bytes(Loaded::bytes);
        let cache = owners.own("runner.kv_cache", cache).bytes(Loaded::bytes);
        let lent = model.lend("runner.pooling.model");
        let pooling = owners.declare("runner.pooling").bytes(|it: &Pooling| it.buffers.bytes());
        if let Some(model) = lent {
            pooling.put(Pooling { model, buffers });
        }
        Ok(Runner { model, cache, pooling })
    }

    fn is_empty(&self) -> bool {
        let layers = self.pooling.with(|pooling| pooling.model.blocks.len());
        let blocks = [&self.model, &self.cache].map(|owned| owned.with(|it| it.blocks.len()));
        layers.is_none() && blocks == [None, None]
    }
}

struct Down {
    observed: Observed,
    /// The memory in use before the runner was created.
    start: Bytes,
    plan: Plan,
    pinned: Receipt,
    freed: Receipt,
    /// True if the runner still exists, and is empty.
    kept: bool,
}

fn with_lowtide(setup: &Setup) -> anyhow::Result<Down> {
    setup.say("shutdown, with lowtide");
    let start = setup.settled()?;
    let pool = setup.pool()?;
    let releaser = setup.releaser(&pool);
    let runner = Runner::start(setup, &pool, &releaser)?;
    let profiler: Vec<_> = (0..HOOKS).filter_map(|_| runner.model.lend(HOLDER)).collect();
    let mut watch = Watch::begin(setup, Way::Lowtide)?;
    let plan = releaser.owners().plan();
    let pinned = releaser.shutdown();
    watch.hold("pinned")?;
    drop(profiler);
    let freed = releaser.shutdown();
    let observed = watch.end()?;
    Ok(Down { observed, start, plan, pinned, freed, kept: runner.is_empty() })
}

// Loads the model, its cache, and the buffers of a wrapper.
fn load(setup: &Setup, pool: &Pool) -> anyhow::Result<[Loaded; 3]> {
    let weights = pool.tag("weights", SleepPolicy::Offload)?;
    let cache = pool.tag("cache", SleepPolicy::Discard)?;
    let [model, keys, buffers] = RUNNER.map(|units| setup.unit.times(units));
    Ok([
        setup.load(pool, weights, model, LAYERS)?,
        setup.load(pool, cache, keys, 1)?,
        setup.load(pool, weights, buffers, 1)?,
    ])
}
