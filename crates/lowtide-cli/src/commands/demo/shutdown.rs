//! A shutdown while a wrapper holds the weights: the usual way frees nothing. With lowtide the receipt
//! names the wrapper; once it has let go, the memory is free while the runner is kept.

use std::sync::Arc;

use lowtide::device::Bytes;
use lowtide::pool::{Pool, SleepPolicy};
use lowtide::release::{Lent, Owned, Releaser, Verdict};

use super::content::Loaded;
use super::scenario::Scenario;
use super::setup::Setup;
use super::watch::{Watch, Way};

/// A runner's model, its cache, and the buffers of a registered wrapper, in units.
pub(super) const RUNNER: [u64; 3] = [8, 4, 1];
const LAYERS: u64 = 4;
/// The unregistered wrapper: hooks on two layers, each of which refers to the whole model.
const HOOKS: usize = 2;
const HOLDER: &str = "profiler.hooks";
const HELD: &str = "runner.model";

/// Both ways fill everything.
pub(super) fn planned(setup: &Setup) -> Bytes {
    setup.units(RUNNER.iter().sum::<u64>() * 2)
}

pub(super) fn run(setup: &Setup, scenario: &mut Scenario) -> anyhow::Result<()> {
    scenario.play(setup, Way::Today, |_| {
        setup.say("shutdown, today".to_owned());
        let (pool, _) = setup.pool()?;
        let [model, _cache, _buffers] = load(setup, &pool)?;
        let model = Arc::new(model);
        let _profiler = model.clone();
        let watch = Watch::begin(setup, Way::Today)?;
        drop(model);
        pool.trim(Bytes::ZERO)?;
        watch.end()
    })?;
    let (start, mut is_kept) = (setup.settled()?, false);
    scenario.play(setup, Way::Lowtide, |scenario| {
        setup.say("shutdown, with lowtide".to_owned());
        let (pool, releaser) = setup.pool()?;
        let runner = Runner::start(setup, &pool, &releaser)?;
        let profiler: Vec<_> = (0..HOOKS).filter_map(|_| runner.model.lend(HOLDER)).collect();
        let mut watch = Watch::begin(setup, Way::Lowtide)?;
        scenario.plan = releaser.owners().plan().steps;
        scenario.receipts.push(releaser.shutdown());
        watch.hold("pinned")?;
        drop(profiler);
        scenario.receipts.push(releaser.shutdown());
        is_kept = runner.is_empty();
        watch.end()
    })?;

    let stays = scenario.today.after_bytes;
    scenario.check(
        setup.same(stays, scenario.today.before_bytes),
        format!("today {stays} stay in use, as if nothing had been dropped"),
    );
    let (needed, blocks) = (start + setup.units(RUNNER.iter().sum()), LAYERS + 3);
    scenario.check_peak(setup, needed, blocks, "model, cache and buffers");
    let order: Vec<&str> = scenario.plan.iter().map(|step| step.name.as_str()).collect();
    let position = |name| order.iter().position(|step| *step == name);
    let first = position("runner.pooling").is_some_and(|wrapper| Some(wrapper) < position(HELD));
    let what = format!("wrappers are dropped before what they wrap: {}", order.join(", "));
    scenario.check(first, what);
    let [pinned, freed] = &scenario.receipts[..] else { unreachable!("two shutdowns") };
    let named = match pinned.holders.as_slice() {
        [one] => one.path == HOLDER && one.holds == HELD && one.count == HOOKS,
        _ => false,
    };
    let is_pinned = named && pinned.verdict == Verdict::Pinned;
    let is_freed = freed.verdict == Verdict::Released && freed.holders.is_empty();
    scenario.holders.clone_from(&pinned.holders);
    scenario.check(
        is_pinned,
        format!("the first receipt says pinned: {HOLDER} holds {HELD} with {HOOKS} references"),
    );
    let what = format!("once {HOLDER} has let go, the second receipt says released");
    scenario.check(is_freed, what);
    scenario.check(is_kept, "the runner is kept, and empty");
    scenario.check_after(setup, start, "as before the runner was created");
    Ok(())
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

// Loads the model, its cache, and the buffers of a wrapper.
fn load(setup: &Setup, pool: &Pool) -> anyhow::Result<[Loaded; 3]> {
    let weights = pool.tag("weights", SleepPolicy::Offload)?;
    let cache = pool.tag("cache", SleepPolicy::Discard)?;
    let [model, keys, buffers] = RUNNER.map(|units| setup.units(units));
    Ok([
        setup.content.load(pool, weights, model, LAYERS)?,
        setup.content.load(pool, cache, keys, 1)?,
        setup.content.load(pool, weights, buffers, 1)?,
    ])
}
