//! Tasks with large temporary buffers: the usual way keeps them cached after they are dropped, lowtide
//! frees them before the next task.

use anyhow::ensure;
use lowtide::device::Bytes;
use lowtide::pool::{Pool, Tag};
use lowtide::release::Stages;

use super::scenario::Scenario;
use super::setup::Setup;
use super::watch::{Watch, Way};

/// The model of an evaluation, and the buffers of each of its tasks, in units; those of the first are the
/// largest.
pub(super) const MODEL: u64 = 4;
pub(super) const TASKS: [(&str, [u64; 2]); 3] =
    [("video", [8, 6]), ("image", [4, 2]), ("audio", [5, 5])];
/// The number of blocks of the model.
const LAYERS: u64 = 4;

/// Both ways fill the model, and fill and compare the buffers; lowtide compares the model too.
pub(super) fn planned(setup: &Setup) -> Bytes {
    let buffers: u64 = TASKS.iter().flat_map(|(_, buffers)| buffers).sum();
    setup.units(MODEL * 3 + buffers * 4)
}

pub(super) fn run(setup: &Setup, scenario: &mut Scenario) -> anyhow::Result<()> {
    // The memory in use after each task.
    let mut levels = Vec::new();
    for way in [Way::Today, Way::Lowtide] {
        scenario.play(setup, way, |scenario| {
            let (pool, releaser) = setup.pool()?;
            let model = setup.content.load(&pool, Tag::default(), setup.units(MODEL), LAYERS)?;
            let mut watch = Watch::begin(setup, way)?;
            let stages = Stages::new(&releaser);
            for (name, buffers) in TASKS {
                setup.say(format!("between tasks, {way}: {name}"));
                task(setup, &pool, &mut watch, &buffers)?;
                if way == Way::Lowtide {
                    scenario.receipts.push(stages.between(name));
                    levels.push(watch.look()?);
                }
            }
            if way == Way::Today {
                return watch.end();
            }
            scenario.note_cleaning(&stages.report(), &watch);
            let watch = watch.end()?;
            let is_right = setup.content.is_right(&pool, &model)?;
            ensure!(is_right, "the model changed while tasks were cleaned up");
            Ok(watch)
        })?;
    }

    let (stays, before) = (scenario.today.after_bytes, scenario.with.before_bytes);
    scenario.check(
        stays > scenario.today.before_bytes,
        format!("today {stays} stay in use although every buffer was dropped"),
    );
    let (_, largest) = TASKS[0];
    let needed = before + setup.units(largest.iter().sum());
    scenario.check_peak(setup, needed, largest.len() as u64, "the model and the largest task");
    let is_back = levels.iter().all(|level| setup.same(*level, before));
    scenario.check(is_back, format!("back to {before} before each next task"));
    scenario.check_after(setup, before, "as before the first task");
    scenario.check_receipts();
    Ok(())
}

// Allocates the buffers of a task, fills them, compares them and drops them.
fn task(setup: &Setup, pool: &Pool, watch: &mut Watch<'_>, buffers: &[u64]) -> anyhow::Result<()> {
    let load = |units: &u64| setup.content.load(pool, Tag::default(), setup.units(*units), 1);
    let frames: Vec<_> = buffers.iter().map(load).collect::<Result<_, _>>()?;
    watch.look_at_peak(buffers == TASKS[0].1)?;
    for frame in &frames {
        let is_right = setup.content.is_right(pool, frame)?;
        ensure!(is_right, "a buffer has other bytes than were written");
    }
    Ok(())
}
