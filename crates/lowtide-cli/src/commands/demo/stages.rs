//! Models one after another in one process: the usual way uses the sum of their sizes, lowtide the
//! largest.

use anyhow::{anyhow, ensure};
use lowtide::device::Bytes;
use lowtide::pool::Tag;
use lowtide::release::{StageError, Stages};

use super::content::Loaded;
use super::scenario::Scenario;
use super::setup::Setup;
use super::watch::{Watch, Way};

/// The models of a pipeline, in units. Their sum, which the usual way uses, is the most memory that any
/// scenario uses.
pub(super) const MODELS: [(&str, u64); 4] =
    [("embedder", 6), ("reranker", 10), ("generator", 16), ("judge", 8)];
/// The number of blocks of a model.
const LAYERS: u64 = 4;

/// The usual way fills; lowtide fills and compares.
pub(super) fn planned(setup: &Setup) -> Bytes {
    MODELS.iter().map(|(_, units)| setup.units(units * 3)).sum()
}

pub(super) fn run(setup: &Setup, scenario: &mut Scenario) -> anyhow::Result<()> {
    let models = MODELS.map(|(name, units)| (name, setup.units(units)));
    let sum: Bytes = models.iter().map(|(_, size)| *size).sum();
    let largest = models.iter().map(|(_, size)| *size).fold(Bytes::ZERO, Bytes::max);
    scenario.play(setup, Way::Today, |_| {
        let (pool, _) = setup.pool()?;
        let mut watch = Watch::begin(setup, Way::Today)?;
        let mut registry: Vec<Loaded> = Vec::new();
        for (name, size) in models {
            setup.say(format!("stages, today: loading the {name}"));
            registry.push(setup.content.load(&pool, Tag::default(), size, LAYERS)?);
            watch.look()?;
        }
        watch.hold("peak")?;
        watch.end()
    })?;
    let (mut seen, mut is_refused) = (Bytes::ZERO, false);
    scenario.play(setup, Way::Lowtide, |scenario| {
        let (pool, releaser) = setup.pool()?;
        let mut watch = Watch::begin(setup, Way::Lowtide)?;
        let stages = Stages::new(&releaser).budget(watch.before + largest + setup.slack());
        for (name, size) in models {
            setup.say(format!("stages, with lowtide: {name}"));
            let load = || setup.content.load(&pool, Tag::default(), size, LAYERS);
            let model = stages.load_needing(name, size, load)?;
            watch.look_at_peak(size == largest)?;
            let right = setup.content.is_right(&pool, &model)?;
            ensure!(right, "the {name} has other bytes than were loaded");
            scenario.receipts.push(model.finish());
        }
        let report = stages.report();
        seen = report.peak_bytes;
        scenario.note_cleaning(&report, &watch);
        let load = || Err::<Loaded, _>(anyhow!("it was loaded"));
        let refused = stages.load_needing("all at once", sum, load).err();
        is_refused = matches!(refused, Some(StageError::WouldNotFit { .. }));
        scenario.refused = refused.map(|error| error.to_string());
        watch.end()
    })?;

    let (today, before) = (scenario.today.peak_bytes, scenario.with.before_bytes);
    let blocks = LAYERS * MODELS.len() as u64;
    scenario.check(
        setup.same_in_blocks(today, scenario.today.before_bytes + sum, blocks),
        format!("today's peak, {today}, is the sum of the models"),
    );
    scenario.check_peak(setup, before + largest, LAYERS, "the largest model alone");
    let is_same = setup.same(seen, scenario.with.peak_bytes);
    scenario.check(is_same, format!("the stages report the same peak, {seen}"));
    scenario.check_after(setup, before, "as before the first stage");
    scenario.check_receipts();
    scenario.check(is_refused, "a stage that would not fit was refused before anything was loaded");
    Ok(())
}
