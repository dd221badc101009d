//! Models one after another in one process: the usual way uses the sum of their sizes, lowtide the
//! largest.

use anyhow::anyhow;
use lowtide::device::Bytes;
use lowtide::pool::Tag;
use lowtide::release::{Receipt, StageError, Stages, Verdict};

use super::content::Loaded;
use super::samples;
use super::scenario::{Cleaning, Scenario};
use super::setup::Setup;
use super::sizes::MODELS;
use super::watch::{Observed, Watch, Way};

/// The number of blocks of a model.
const LAYERS: u64 = 4;

/// Returns the bytes that are filled and compared.
pub(super) fn planned(setup: &Setup) -> Bytes {
    // The usual way fills; lowtide fills and compares.
    MODELS.iter().map(|(_, units)| setup.unit.times(units * 3)).sum()
}

pub(super) fn run(setup: &Setup) -> anyhow::Result<Scenario> {
    let sizes = MODELS.map(|(_, units)| setup.unit.times(units));
    let sum: Bytes = sizes.into_iter().sum();
    let largest = sizes.into_iter().fold(Bytes::ZERO, Bytes::max);
    let (today, samples_today) = samples::take(setup, Way::Today, || today(setup))?;
    let (staged, samples) =
        samples::take(setup, Way::Lowtide, || with_lowtide(setup, sum, largest))?;
    let Staged { observed, seen, cleaning, receipts, refused } = staged;

    let needed = observed.before + largest;
    let mut scenario = Scenario::new(
        "stages",
        ("a pipeline keeps every model that it has loaded", today, samples_today),
        ("each model is torn down, with a receipt, before the next one loads", observed, samples),
        needed,
    );
    let kept = (scenario.today.peak_bytes, scenario.today.before_bytes + sum);
    let blocks = LAYERS * MODELS.len() as u64;
    scenario.check(
        setup.same_in_blocks(kept.0, kept.1, blocks),
        format!("today's peak, {}, is the sum of the models", kept.0),
    );
    scenario.check_peak(setup, LAYERS, "the largest model alone");
    scenario.check(
        setup.same(seen, scenario.peak_bytes),
        format!("the stages report the same peak, {seen}"),
    );
    scenario.check_after(setup, scenario.before_bytes, "as before the first stage");
    let released = receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    scenario.check(released, "every receipt says released");
    scenario.check(
        matches!(refused, Some(StageError::WouldNotFit { .. })),
        "a stage that would not fit was refused before anything was loaded",
    );
    scenario.refused = refused.map(|error| error.to_string());
    (scenario.cleaning, scenario.receipts) = (Some(cleaning), receipts);
    Ok(scenario.judged())
}

fn today(setup: &Setup) -> anyhow::Result<Observed> {
    let pool = setup.pool()?;
    let mut watch = Watch::begin(setup, Way::Today)?;
    let mut registry: Vec<(&str, Loaded)> = Vec::new();
    for (name, units) in MODELS {
        setup.say(format!("stages, today: loading the {name}"));
        let size = setup.unit.times(units);
        registry.push((name, setup.load(&pool, Tag::default(), size, LAYERS)?));
        watch.look()?;
    }
    watch.hold("peak")?;
    watch.end()
}

struct Staged {
    observed: Observed,
    /// The peak, as the stages report it.
    seen: Bytes,
    cleaning: Cleaning,
    receipts: Vec<Receipt>,
    refused: Option<StageError<anyhow::Error>>,
}

fn with_lowtide(setup: &Setup, sum: Bytes, largest: Bytes) -> anyhow::Result<Staged> {
    let pool = setup.pool()?;
    let releaser = setup.releaser(&pool);
    let mut watch = Watch::begin(setup, Way::Lowtide)?;
    let stages = Stages::new(&releaser).budget(watch.before() + largest + setup.slack());
    let mut receipts = Vec::new();
    for (name, units) in MODELS {
        setup.say(format!("stages, with lowtide: {name}"));
        let size = setup.unit.times(units);
        let load = || setup.load(&pool, Tag::default(), size, LAYERS);
        let model = stages.load_needing(name, size, load)?;
        watch.look_at_peak(size == largest)?;
        let right = setup.is_right(&pool, &model)?;
        anyhow::ensure!(right, "the {name} has other bytes than were loaded");
        receipts.push(model.finish());
    }
    let report = stages.report();
    let (seen, cleaning) = (report.peak_bytes, Cleaning::new(&report, &watch));
    let load = || Err::<Loaded, _>(anyhow!("it was loaded"));
    let refused = stages.load_needing("all at once", sum, load).err();
    Ok(Staged { observed: watch.end()?, seen, cleaning, receipts, refused })
}
