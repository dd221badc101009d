//! Models one after another in one process: the sum today, the largest with lowtide.

use std::sync::Arc;

use anyhow::anyhow;
use lowtide::{Bytes, Receipt, StageError, Stages, Tag, Verdict};

use super::act::{Act, Cleaning};
use super::content::Loaded;
use super::site::Site;
use super::sizes::MODELS;
use super::watch::{Part, Watch, Way};

/// A model is so many blocks.
const LAYERS: u64 = 4;

pub(super) fn play(site: &Site) -> anyhow::Result<Act> {
    let sizes = MODELS.map(|(_, units)| site.unit.times(units));
    let sum: Bytes = sizes.into_iter().sum();
    let largest = sizes.into_iter().fold(Bytes::ZERO, Bytes::max);
    let today = today(site)?;
    let Staged { part, seen, cleaning, receipts, refused } = with_lowtide(site, sum, largest)?;

    let needed = part.before + largest;
    let mut act = Act::new(
        "stages",
        ("a pipeline keeps every model that it has loaded", today),
        ("each model is torn down, with a receipt, before the next is loaded", part),
        needed,
    );
    let kept = (act.today.peak_bytes, act.today.before_bytes + sum);
    let blocks = LAYERS * MODELS.len() as u64;
    act.claim(
        site.same_in_blocks(kept.0, kept.1, blocks),
        format!("today's peak, {}, is the sum of the models", kept.0),
    );
    act.claim_peak(site, LAYERS, "the largest model alone");
    act.claim(
        site.same(seen, act.peak_bytes),
        format!("the stages themselves saw the same peak, {seen}"),
    );
    act.claim_after(site, act.before_bytes, "as before the first stage");
    let released = receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
    act.claim(released, "each stage gave back what it took, says its receipt");
    act.claim(
        matches!(refused, Some(StageError::WouldNotFit { .. })),
        "what would not fit was refused before anything was loaded",
    );
    act.refused = refused.map(|error| error.to_string());
    (act.cleaning, act.receipts) = (Some(cleaning), receipts);
    Ok(act.judged())
}

fn today(site: &Site) -> anyhow::Result<Part> {
    let pool = site.pool()?;
    let mut watch = Watch::begin(site, Way::Today)?;
    let mut registry: Vec<(&str, Loaded)> = Vec::new();
    for (name, units) in MODELS {
        site.say(format!("stages, today: loading the {name}"));
        let size = site.unit.times(units);
        registry.push((name, site.content.load(&pool, Tag::default(), size, LAYERS)?));
        watch.look()?;
    }
    watch.hold("peak")?;
    watch.end()
}

struct Staged {
    part: Part,
    /// The peak, as the stages saw it themselves.
    seen: Bytes,
    cleaning: Cleaning,
    receipts: Vec<Arc<Receipt>>,
    refused: Option<StageError<anyhow::Error>>,
}

fn with_lowtide(site: &Site, sum: Bytes, largest: Bytes) -> anyhow::Result<Staged> {
    let pool = site.pool()?;
    let releaser = site.releaser(&pool);
    let mut watch = Watch::begin(site, Way::Lowtide)?;
    let stages = Stages::new(&releaser).budget(watch.before() + largest + site.slack());
    let mut receipts = Vec::new();
    for (name, units) in MODELS {
        site.say(format!("stages, with lowtide: {name}"));
        let size = site.unit.times(units);
        let load = || site.content.load(&pool, Tag::default(), size, LAYERS);
        let model = stages.load_needing(name, size, load)?;
        watch.look_at_peak(size == largest)?;
        let right = site.content.is_right(&pool, &model)?;
        anyhow::ensure!(right, "the {name} does not hold what was loaded");
        receipts.push(model.finish());
    }
    let report = stages.report();
    let (seen, cleaning) = (report.peak_bytes, Cleaning::new(&report, &watch));
    let load = || Err::<Loaded, _>(anyhow!("it was loaded"));
    let refused = stages.load_needing("all at once", sum, load).err();
    Ok(Staged { part: watch.end()?, seen, cleaning, receipts, refused })
}
