//! A shutdown with a wrapper that holds the weights: nothing comes back today; with lowtide the
//! wrapper is named, and once it is told the memory is free while the runner is kept.

use std::sync::Arc;

use lowtide::{Bytes, Lent, Owned, Plan, Pool, Receipt, Releaser, SleepPolicy, Verdict};

use super::act::Act;
use super::content::Loaded;
use super::site::Site;
use super::sizes::RUNNER;
use super::watch::{Part, Watch, Way};

const LAYERS: u64 = 4;
/// The planted wrapper: hooks on two layers, each of which keeps the whole model.
const HOOKS: usize = 2;
const HOLDER: &str = "profiler.hooks";
const HELD: &str = "runner.model";

pub(super) fn play(site: &Site) -> anyhow::Result<Act> {
    let today = today(site)?;
    let Down { part, start, plan, pinned, freed, kept } = with_lowtide(site)?;

    let needed = start + RUNNER.iter().map(|units| site.unit.times(*units)).sum();
    let mut act = Act::new(
        "shutdown",
        (
            "the model is dropped and the allocator's cache emptied; a wrapper still has the weights",
            today,
        ),
        ("wrappers go first; who still holds is named; the runner is kept", part),
        needed,
    );
    let stays = act.today.after_bytes;
    act.claim(
        site.same(stays, act.today.before_bytes),
        format!("today {stays} stay in use, as if nothing had been dropped"),
    );
    act.claim_peak(site, LAYERS + RUNNER.len() as u64, "model, cache and buffers");
    let order: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    let place = |name| order.iter().position(|step| *step == name);
    let first = place("runner.pooling").is_some_and(|wrapper| Some(wrapper) < place(HELD));
    act.claim(first, format!("wrappers before what they wrap: {}", order.join(", ")));
    let named =
        pinned.holders.iter().any(|it| it.path == HOLDER && it.holds == HELD && it.count == HOOKS);
    act.claim(
        named && pinned.holders.len() == 1 && pinned.verdict == Verdict::Pinned,
        format!("the first shutdown says pinned, and that {HOLDER} holds {HELD} {HOOKS} times"),
    );
    act.claim(
        freed.verdict == Verdict::Released && freed.holders.is_empty(),
        format!("{HOLDER} told, the second says released"),
    );
    act.claim(kept, "the runner is still ours, and empty");
    act.claim_after(site, start, "as before the runner was made");
    act.holders.clone_from(&pinned.holders);
    act.plan = plan.steps;
    act.receipts = vec![pinned, freed];
    Ok(act.judged())
}

fn today(site: &Site) -> anyhow::Result<Part> {
    struct Runner {
        model: Option<Arc<Loaded>>,
        _others: [Loaded; 2],
    }
    site.say("shutdown, today");
    let pool = site.pool()?;
    let [model, others @ ..] = load(site, &pool)?;
    let mut runner = Runner { model: Some(Arc::new(model)), _others: others };
    let profiler = runner.model.clone();
    let watch = Watch::begin(site, Way::Today)?;
    runner.model = None;
    pool.trim(Bytes::ZERO)?;
    let part = watch.end();
    drop((profiler, runner));
    part
}

struct Runner {
    model: Owned<Loaded>,
    cache: Owned<Loaded>,
    pooling: Owned<Pooling>,
}

/// A wrapper that is on record.
struct Pooling {
    model: Lent<Loaded>,
    buffers: Loaded,
}

impl Runner {
    fn start(site: &Site, pool: &Pool, releaser: &Releaser) -> anyhow::Result<Runner> {
        let [model, cache, buffers] = load(site, pool)?;
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
    part: Part,
    /// In use before the runner was made.
    start: Bytes,
    plan: Plan,
    pinned: Arc<Receipt>,
    freed: Arc<Receipt>,
    /// Whether the runner is there, with nothing in it.
    kept: bool,
}

fn with_lowtide(site: &Site) -> anyhow::Result<Down> {
    site.say("shutdown, with lowtide");
    let start = site.settled()?;
    let pool = site.pool()?;
    let releaser = site.releaser(&pool);
    let runner = Runner::start(site, &pool, &releaser)?;
    let profiler: Vec<_> = (0..HOOKS).filter_map(|_| runner.model.lend(HOLDER)).collect();
    let mut watch = Watch::begin(site, Way::Lowtide)?;
    let plan = releaser.owners().plan();
    let pinned = releaser.shutdown();
    watch.hold("pinned")?;
    drop(profiler);
    let freed = releaser.shutdown();
    let part = watch.end()?;
    Ok(Down { part, start, plan, pinned, freed, kept: runner.is_empty() })
}

// The model, its cache, the buffers of a wrapper.
fn load(site: &Site, pool: &Pool) -> anyhow::Result<[Loaded; 3]> {
    let weights = pool.tag("weights", SleepPolicy::Offload)?;
    let cache = pool.tag("cache", SleepPolicy::Discard)?;
    let [model, keys, buffers] = RUNNER.map(|units| site.unit.times(units));
    Ok([
        site.content.load(pool, weights, model, LAYERS)?,
        site.content.load(pool, cache, keys, 1)?,
        site.content.load(pool, weights, buffers, 1)?,
    ])
}
