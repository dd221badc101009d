//! A shutdown while a wrapper holds the weights: the usual way frees nothing. With lowtide the receipt
//! names the wrapper; once it has let go, the memory is free while the runner is kept.

use std::sync::Arc;

use lowtide::device::Bytes;
use lowtide::pool::Tag;
use lowtide::release::{Holder, Lent, Planned, Verdict};

use super::scenario::Play;
use crate::content::Filled;

/// A runner's model, its cache, and the buffers of a registered wrapper, in units.
const RUNNER: [u64; 3] = [8, 4, 1];
const LAYERS: u64 = 4;
/// The unregistered wrapper: hooks on two layers, each of which refers to the whole model.
const HOOKS: usize = 2;
const HOLDER: &str = "profiler.hooks";
const HELD: &str = "runner.model";
/// The registered one, which borrows the model.
const WRAPPER: &str = "runner.pooling";

pub(super) fn today(play: &mut Play<'_>) -> anyhow::Result<()> {
    let [model, _cache, _buffers] = load(play)?;
    let model = Arc::new(model);
    let _profiler = model.clone();
    play.begin()?;
    drop(model);
    play.pool.trim(Bytes::ZERO)?;
    play.end()
}

pub(super) fn with_lowtide(play: &mut Play<'_>) -> anyhow::Result<()> {
    let Play { setup, releaser, .. } = *play;
    let [model, cache, buffers] = load(play)?;
    let owners = releaser.owners();
    let model = owners.own(HELD, model).bytes(|it| bytes(it));
    let cache = owners.own("runner.kv_cache", cache).bytes(|it| bytes(it));
    let wrapper = owners.declare(WRAPPER).bytes(|(_, buffers): &Wrapper| bytes(buffers));
    if let Some(lent) = model.lend("runner.pooling.model") {
        wrapper.put((lent, buffers));
    }
    let profiler: Vec<_> = (0..HOOKS).filter_map(|_| model.lend(HOLDER)).collect();
    play.begin()?;
    let plan = owners.plan().steps;
    let rows: Vec<_> = plan.iter().zip(1..).map(row).collect();
    play.scenario.rows.push(("plan", rows.join("\n")));
    let pinned = releaser.shutdown();
    play.hold("pinned")?;
    drop(profiler);
    let freed = releaser.shutdown();
    let is_kept = [&model, &cache].map(|owned| owned.with(Vec::len)) == [None, None]
        && wrapper.with(|_| ()).is_none();
    play.end()?;

    let (stays, before) = (play.scenario.today.after_bytes, play.scenario.today.before_bytes);
    let what = format!("today {stays} stay in use, as if nothing had been dropped");
    play.check(setup.same(stays, before, 0), what);
    let needed = play.start + setup.units(RUNNER.iter().sum());
    play.check_peak(needed, LAYERS + 3, "model, cache and buffers");
    let order: Vec<&str> = plan.iter().map(|step| step.name.as_str()).collect();
    let position = |name| order.iter().position(|step| *step == name);
    let is_first = position(WRAPPER).is_some_and(|wrapper| Some(wrapper) < position(HELD));
    let what = format!("wrappers are dropped before what they wrap: {}", order.join(", "));
    play.check(is_first, what);
    let is_wrapper = |it: &Holder| (&*it.path, &*it.holds, it.count) == (HOLDER, HELD, HOOKS);
    let is_named = matches!(&*pinned.holders, [one] if is_wrapper(one));
    let what =
        format!("the first receipt says pinned: {HOLDER} holds {HELD} with {HOOKS} references");
    play.check(is_named && pinned.verdict == Verdict::Pinned, what);
    let is_freed = freed.verdict == Verdict::Released && freed.holders.is_empty();
    let what = format!("once {HOLDER} has let go, the second receipt says released");
    play.check(is_freed, what);
    play.check(is_kept, "the runner is kept, and empty");
    play.check_after(play.start, "as before the runner was created");
    (play.scenario.plan, play.scenario.holders) = (plan, pinned.holders.clone());
    play.scenario.receipts = vec![pinned, freed];
    Ok(())
}

/// The model that the registered wrapper borrows, and its own buffers.
type Wrapper = (Lent<Vec<Filled>>, Vec<Filled>);

fn bytes(blocks: &[Filled]) -> Bytes {
    blocks.iter().map(|filled| filled.block.size()).sum()
}

fn row((step, number): (&Planned, u32)) -> String {
    let bytes = step.bytes.map_or_else(String::new, |bytes| format!(", {bytes}"));
    let borrows = if step.borrows.is_empty() { "" } else { ", borrows " };
    format!("{number}. {}{bytes}{borrows}{}", step.name, step.borrows.join(", "))
}

// Loads the model, its cache, and the buffers of a wrapper.
fn load(play: &Play<'_>) -> anyhow::Result<[Vec<Filled>; 3]> {
    let [model, cache, buffers] = RUNNER;
    let [model, cache] = play.load_server([(model, LAYERS), (cache, 1)])?;
    Ok([model, cache, play.load(Tag::default(), (buffers, 1))?])
}
