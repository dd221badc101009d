//! Tasks with large temporary buffers: the usual way keeps them cached after they are dropped, lowtide
//! frees them before the next task.

use anyhow::ensure;
use lowtide::device::Bytes;
use lowtide::pool::{Pool, Tag};
use lowtide::release::{Receipt, Stages, Verdict};

use super::samples;
use super::scenario::{Cleaning, Scenario};
use super::setup::Setup;
use super::sizes::{EVALUATED, TASKS};
use super::watch::{Observed, Watch, Way};

/// The number of blocks of the model.
const LAYERS: u64 = 4;

/// Returns the bytes that are filled and compared.
pub(super) fn planned(setup: &Setup) -> Bytes {
    // Both ways fill the model, and fill and compare the buffers; lowtide compares the model too.
    let buffers: u64 = TASKS.iter().flat_map(|(_, buffers)| buffers).sum();
    setup.unit.times(EVALUATED * 3 + buffers * 4)
}

pub(super) fn run(setup: &Setup) -> anyhow::Result<Scenario> {
    let (today, samples_today) = samples::take(setup, Way::Today, || today(setup))?;
    let (cleaned, samples) = samples::take(setup, Way::Lowtide, || with_lowtide(setup))?;
    let Cleaned { observed, levels, cleaning, receipts } = cleaned;

    let buffers = TASKS.map(|(_, units)| setup.unit.times(units.iter().sum()));
    let needed = observed.before + buffers.into_iter().fold(Bytes::ZERO, Bytes::max);
    let mut scenario = Scenario::new(
        "between tasks",
        ("buffers are dropped after each task, and stay cached", today, samples_today),
        ("after each task: collect, then trim", observed, samples),
        needed,
    );
    let stays = scenario.today.after_bytes;
    scenario.check(
        stays > scenario.today.before_bytes,
        format!("today {stays} stay in use although every buffer was dropped"),
    );
    scenario.check_peak(setup, TASKS[0].1.len() as u64, "the model and the largest task");
    let start = scenario.before_bytes;
    scenario.check(
        levels.iter().all(|level| setup.same(*level, start)),
        format!("back to {start} before each next task"),
    );
    scenario.check_after(setup, start, "as before the first task");
    let released = receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    scenario.check(released, "every receipt says released");
    scenario.cleaning = Some(cleaning);
    scenario.receipts = receipts;
    Ok(scenario.judged())
}

fn today(setup: &Setup) -> anyhow::Result<Observed> {
    let pool = setup.pool()?;
    let model = setup.load(&pool, Tag::default(), setup.unit.times(EVALUATED), LAYERS)?;
    let mut watch = Watch::begin(setup, Way::Today)?;
    for (name, buffers) in TASKS {
        setup.say(format!("between tasks, today: {name}"));
        task(setup, &pool, &mut watch, &buffers)?;
    }
    let observed = watch.end();
    drop(model);
    observed
}

struct Cleaned {
    observed: Observed,
    /// The memory in use after each task.
    levels: Vec<Bytes>,
    cleaning: Cleaning,
    receipts: Vec<Receipt>,
}

fn with_lowtide(setup: &Setup) -> anyhow::Result<Cleaned> {
    let pool = setup.pool()?;
    let releaser = setup.releaser(&pool);
    let model = setup.load(&pool, Tag::default(), setup.unit.times(EVALUATED), LAYERS)?;
    let mut watch = Watch::begin(setup, Way::Lowtide)?;
    let stages = Stages::new(&releaser);
    let (mut levels, mut receipts) = (Vec::new(), Vec::new());
    for (name, buffers) in TASKS {
        setup.say(format!("between tasks, with lowtide: {name}"));
        task(setup, &pool, &mut watch, &buffers)?;
        receipts.push(stages.between(name));
        levels.push(watch.look()?);
    }
    let cleaning = Cleaning::new(&stages.report(), &watch);
    let observed = watch.end()?;
    ensure!(setup.is_right(&pool, &model)?, "the model changed while tasks were cleaned up");
    Ok(Cleaned { observed, levels, cleaning, receipts })
}

// Allocates the buffers of a task, fills them, compares them and drops them.
fn task(setup: &Setup, pool: &Pool, watch: &mut Watch<'_>, buffers: &[u64]) -> anyhow::Result<()> {
    let load = |units: &u64| setup.load(pool, Tag::default(), setup.unit.times(*units), 1);
    let frames: Vec<_> = buffers.iter().map(load).collect::<Result<_, _>>()?;
    watch.look_at_peak(buffers == TASKS[0].1)?;
    for frame in &frames {
        ensure!(setup.is_right(pool, frame)?, "a buffer has other bytes than were written");
    }
    Ok(())
}
