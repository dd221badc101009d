//! Models, and tasks with large temporary buffers, one after another in one process. The usual way uses
//! the sum of the models, and keeps the buffers cached after they are dropped. lowtide uses the largest
//! model, and frees the buffers before the next task.

use anyhow::{anyhow, ensure};
use lowtide::pool::Tag;
use lowtide::release::{StageError, Stages};

use super::scenario::{Play, Way};

/// The models of a pipeline, in units. Their sum, which the usual way uses, is the most memory that any
/// scenario uses.
pub(super) const MODELS: [(&str, u64); 4] =
    [("embedder", 6), ("reranker", 10), ("generator", 16), ("judge", 8)];
/// The model of an evaluation, and the buffers of each of its tasks, in units; those of the first are the
/// largest.
const MODEL: u64 = 4;
const TASKS: [(&str, [u64; 2]); 3] = [("video", [8, 6]), ("image", [4, 2]), ("audio", [5, 5])];
/// The number of blocks of a model.
const LAYERS: u64 = 4;

pub(super) fn today(play: &mut Play<'_>) -> anyhow::Result<()> {
    play.begin()?;
    let mut registry = Vec::new();
    for (name, units) in MODELS {
        play.say(name);
        registry.push(play.load(Tag::default(), (units, LAYERS))?);
        play.look(registry.len() == MODELS.len())?;
    }
    play.end()
}

pub(super) fn with_lowtide(play: &mut Play<'_>) -> anyhow::Result<()> {
    let Play { setup, releaser, .. } = *play;
    let before = play.begin()?;
    let sizes = MODELS.map(|(_, units)| setup.units(units));
    let (sum, largest) = (sizes.into_iter().sum(), sizes.into_iter().max().unwrap_or_default());
    let stages = Stages::new(releaser).budget(before + largest + setup.slack);
    for ((name, units), size) in MODELS.into_iter().zip(sizes) {
        play.say(name);
        let load = || play.load(Tag::default(), (units, LAYERS));
        let model = stages.load_needing(name, size, load)?;
        play.look(size == largest)?;
        let is_right = setup.content.is_right(&*model)?;
        ensure!(is_right, "the {name} has other bytes than were loaded");
        play.scenario.receipts.push(model.finish());
    }
    let report = stages.report();
    let load = || Err::<(), _>(anyhow!("it was loaded"));
    let refused = stages.load_needing("all at once", sum, load).err();
    let is_refused = matches!(refused, Some(StageError::WouldNotFit { .. }));
    let refused = refused.map(|error| error.to_string());
    play.scenario.rows.extend(refused.clone().map(|text| ("refused", text)));
    play.scenario.refused = refused;
    play.note_cleaning(&report);
    play.end()?;

    let (today, seen) = (play.scenario.today.peak_bytes, report.peak_bytes);
    let (needed, blocks) = (play.scenario.today.before_bytes + sum, LAYERS * MODELS.len() as u64);
    let what = format!("today's peak, {today}, is the sum of the models");
    play.check(setup.same(today, needed, blocks), what);
    play.check_peak(before + largest, LAYERS, "the largest model alone");
    let is_same = setup.same(seen, play.scenario.with.peak_bytes, 0);
    play.check(is_same, format!("the stages report the same peak, {seen}"));
    play.check_after(before, "as before the first stage");
    play.check_receipts();
    play.check(is_refused, "a stage that would not fit was refused before anything was loaded");
    Ok(())
}

pub(super) fn between_tasks(play: &mut Play<'_>) -> anyhow::Result<()> {
    let Play { setup, releaser, .. } = *play;
    let model = play.load(Tag::default(), (MODEL, LAYERS))?;
    let (before, stages) = (play.begin()?, Stages::new(releaser));
    let mut is_back = true;
    for (name, buffers) in TASKS {
        play.say(name);
        let frames = buffers.map(|units| play.load(Tag::default(), (units, 1)));
        let frames = frames.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        play.look(buffers == TASKS[0].1)?;
        let is_right = setup.content.is_right(frames.iter().flatten())?;
        ensure!(is_right, "a buffer has other bytes than were written");
        drop(frames);
        if play.way == Way::Lowtide {
            play.scenario.receipts.push(stages.between(name));
            is_back &= setup.same(play.look(false)?, before, 0);
        }
    }
    if play.way == Way::Today {
        return play.end();
    }
    play.note_cleaning(&stages.report());
    play.end()?;
    ensure!(setup.content.is_right(&model)?, "the model changed while tasks were cleaned up");

    let (stays, began) = (play.scenario.today.after_bytes, play.scenario.today.before_bytes);
    let what = format!("today {stays} stay in use although every buffer was dropped");
    play.check(stays > began, what);
    let (_, largest) = TASKS[0];
    let needed = before + setup.units(largest.iter().sum());
    play.check_peak(needed, largest.len() as u64, "the model and the largest task");
    play.check(is_back, format!("back to {before} before each next task"));
    play.check_after(before, "as before the first task");
    play.check_receipts();
    Ok(())
}
