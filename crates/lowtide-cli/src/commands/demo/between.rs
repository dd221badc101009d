//! Tasks with large temporary buffers: dropped and still taken today, back with the device before
//! the next task with lowtide.

use std::sync::Arc;

use anyhow::ensure;
use lowtide::{Bytes, Pool, Receipt, Stages, Tag, Verdict};

use super::act::{Act, Cleaning};
use super::site::Site;
use super::sizes::{EVALUATED, TASKS};
use super::watch::{Part, Watch, Way};

/// The model that is evaluated is so many blocks.
const LAYERS: u64 = 4;

pub(super) fn play(site: &Site) -> anyhow::Result<Act> {
    let today = today(site)?;
    let Cleaned { part, levels, cleaning, receipts } = with_lowtide(site)?;

    let buffers = TASKS.map(|(_, units)| site.unit.times(units.iter().sum()));
    let needed = part.before + buffers.into_iter().fold(Bytes::ZERO, Bytes::max);
    let mut act = Act::new(
        "between tasks",
        ("buffers are dropped after each task, and stay cached", today),
        ("after each task: collect, then trim", part),
        needed,
    );
    let stays = act.today.after_bytes;
    act.claim(
        stays > act.today.before_bytes,
        format!("today {stays} stay in use though every buffer was dropped"),
    );
    act.claim_peak(site, TASKS[0].1.len() as u64, "the model and the largest task");
    let start = act.before_bytes;
    act.claim(
        levels.iter().all(|level| site.same(*level, start)),
        format!("back to {start} before each next task"),
    );
    act.claim_after(site, start, "as before the first task");
    let released = receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    act.claim(released, "each clean-up gave memory back, says its receipt");
    act.cleaning = Some(cleaning);
    act.receipts = receipts;
    Ok(act.judged())
}

fn today(site: &Site) -> anyhow::Result<Part> {
    let pool = site.pool()?;
    let model = site.content.load(&pool, Tag::default(), site.unit.times(EVALUATED), LAYERS)?;
    let mut watch = Watch::begin(site, Way::Today)?;
    for (name, buffers) in TASKS {
        site.say(format!("between tasks, today: {name}"));
        task(site, &pool, &mut watch, &buffers)?;
    }
    let part = watch.end();
    drop(model);
    part
}

struct Cleaned {
    part: Part,
    /// In use after each task.
    levels: Vec<Bytes>,
    cleaning: Cleaning,
    receipts: Vec<Arc<Receipt>>,
}

fn with_lowtide(site: &Site) -> anyhow::Result<Cleaned> {
    let pool = site.pool()?;
    let releaser = site.releaser(&pool);
    let model = site.content.load(&pool, Tag::default(), site.unit.times(EVALUATED), LAYERS)?;
    let mut watch = Watch::begin(site, Way::Lowtide)?;
    let stages = Stages::new(&releaser);
    let (mut levels, mut receipts) = (Vec::new(), Vec::new());
    for (name, buffers) in TASKS {
        site.say(format!("between tasks, with lowtide: {name}"));
        task(site, &pool, &mut watch, &buffers)?;
        receipts.push(stages.between(name));
        levels.push(watch.look()?);
    }
    let cleaning = Cleaning::new(&stages.report(), &watch);
    let part = watch.end()?;
    ensure!(site.content.is_right(&pool, &model)?, "the model changed while tasks were cleaned up");
    Ok(Cleaned { part, levels, cleaning, receipts })
}

// Frames come in, are looked at, and go.
fn task(site: &Site, pool: &Pool, watch: &mut Watch<'_>, buffers: &[u64]) -> anyhow::Result<()> {
    let load = |units: &u64| site.content.load(pool, Tag::default(), site.unit.times(*units), 1);
    let frames: Vec<_> = buffers.iter().map(load).collect::<Result<_, _>>()?;
    watch.look_at_peak(buffers == TASKS[0].1)?;
    for frame in &frames {
        ensure!(site.content.is_right(pool, frame)?, "a buffer does not hold what came in");
    }
    Ok(())
}
