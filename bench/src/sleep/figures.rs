//! The figures of `lowtide-bench sleep`: medians over all processes, as data and as text.

use anyhow::Context;
use lowtide_device::{Bytes, DeviceId};
use serde::Serialize;

use super::ahead::Ahead;
use super::child::{Measured, REST};
use super::options::Options;
use crate::median;
use crate::model::Model;
use lowtide_cli::text::page::Page;

#[derive(Serialize)]
pub(super) struct SleepFigures {
    device: DeviceId,
    kept_bytes: Bytes,
    kept_blocks: usize,
    discarded_bytes: Bytes,
    discarded_blocks: usize,
    sizes_divided_by: u64,
    processes: usize,
    turns: u32,
    raw_out_s: f64,
    raw_in_s: f64,
    first_sleep_s: f64,
    first_sleeps_s: Vec<f64>,
    /// Set where the weights were filled with bf16 values, and where pages of bf16 values were packed.
    weights: bool,
    packing: bool,
    /// What preceded the first sleep; times and rates are medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<AheadFigures>,
    unchanged_sleep_s: f64,
    changed_sleep_s: f64,
    wake_s: f64,
    /// The same with no rest before it: the driver is still clearing freed memory.
    wake_at_once_s: f64,
    /// The later sleep with every page changed, divided by the plain copy out.
    changed_ratio: f64,
    /// The wake, divided by the plain copy in.
    wake_ratio: f64,
    /// The device memory in use before the pool was created and during the first sleep, of the process
    /// in which they differ most.
    context_bytes: Bytes,
    asleep_bytes: Bytes,
    backup_bytes: Bytes,
    pub(super) right: bool,
    /// The pool of that process during that sleep.
    asleep: serde_json::Value,
}

/// Backups ahead of the first sleep.
#[derive(Serialize)]
struct AheadFigures {
    share_percent: u32,
    /// From the start until nothing was left to back up.
    backed_up_s: f64,
    /// Launches of small work per second, alone and meanwhile.
    launches_alone: f64,
    launches_meanwhile: f64,
    launch_ratio: f64,
}

impl AheadFigures {
    fn new(share_percent: u32, measured: &[Measured]) -> AheadFigures {
        let all = |value: fn(&Ahead) -> f64| {
            median(measured.iter().filter_map(|one| one.ahead.as_ref()).map(value).collect())
        };
        let launches_alone = all(|ahead| ahead.launches_alone);
        let launches_meanwhile = all(|ahead| ahead.launches_meanwhile);
        AheadFigures {
            share_percent,
            backed_up_s: all(|ahead| ahead.backed_up_s),
            launches_alone,
            launches_meanwhile,
            launch_ratio: all(|ahead| ahead.launches_meanwhile / ahead.launches_alone),
        }
    }
}

/// Merges the measurements of all processes.
pub(super) fn merge(
    id: DeviceId,
    options: &Options,
    mut measured: Vec<Measured>,
) -> anyhow::Result<SleepFigures> {
    let (divide, turns) = (options.divide.unwrap_or(1), options.turns);
    let all = |values: fn(&Measured) -> &[f64]| -> f64 {
        median(measured.iter().flat_map(|one| values(one).to_vec()).collect())
    };
    let first: Vec<f64> = measured.iter().map(|one| one.first_sleep_s).collect();
    let (raw_out_s, raw_in_s) = (all(|one| &one.raw_out_s), all(|one| &one.raw_in_s));
    let (changed_sleep_s, wake_s) = (all(|one| &one.changed_sleep_s), all(|one| &one.wake_s));
    let unchanged_sleep_s = all(|one| &one.unchanged_sleep_s);
    let wake_at_once_s = all(|one| &one.wake_at_once_s);
    let (processes, right) = (measured.len(), measured.iter().all(|one| one.right));
    let ahead = options.ahead.map(|share| AheadFigures::new(share, &measured));
    let backup_bytes = measured.iter().map(|one| one.backup_bytes).max().unwrap_or_default();
    measured.sort_by_key(Measured::above_context);
    let worst = measured.pop().context("at least one process")?;
    Ok(SleepFigures {
        device: id,
        kept_bytes: Model::kept_bytes(divide),
        kept_blocks: Model::KEPT_BLOCKS,
        discarded_bytes: Model::discarded_bytes(divide),
        discarded_blocks: Model::DISCARDED_BLOCKS,
        sizes_divided_by: divide,
        processes,
        turns,
        raw_out_s,
        raw_in_s,
        first_sleep_s: median(first.clone()),
        first_sleeps_s: first,
        weights: options.weights,
        packing: !options.no_packing,
        ahead,
        unchanged_sleep_s,
        changed_sleep_s,
        wake_s,
        wake_at_once_s,
        changed_ratio: changed_sleep_s / raw_out_s,
        wake_ratio: wake_s / raw_in_s,
        context_bytes: worst.context_bytes,
        asleep_bytes: worst.asleep_bytes,
        backup_bytes,
        right,
        asleep: worst.asleep,
    })
}

impl SleepFigures {
    /// Returns the figures as text.
    pub(super) fn text(&self) -> Page {
        let SleepFigures { processes, turns, sizes_divided_by, .. } = self;
        let mut page = Page::default();
        let title = format!("medians; processes: {processes}, turns of each kind: {turns}");
        page.title(&self.device.to_string(), &title);
        let blocks = |bytes: Bytes, count: usize| format!("{bytes} in {count} blocks");
        page.row("kept", &blocks(self.kept_bytes, self.kept_blocks));
        page.row("discarded", &blocks(self.discarded_bytes, self.discarded_blocks));
        if *sizes_divided_by > 1 {
            page.row("", &format!("(every size of the usual work divided by {sizes_divided_by})"));
        }
        let mut row = |name, seconds: f64, more: &str| {
            page.columns(&format!("  {name:<16} {:>9.1} ms  ", seconds * 1e3), more);
        };
        row("plain copy out", self.raw_out_s, "");
        row("plain copy in", self.raw_in_s, "");
        if let Some(ahead) = &self.ahead {
            let AheadFigures { share_percent, launches_alone, launch_ratio, .. } = ahead;
            let more = format!(
                "in {share_percent}% of the time, beside {launches_alone:.0} launches/s, which kept {:.1}% of their speed",
                launch_ratio * 100.0
            );
            row("backed up ahead", ahead.backed_up_s, &more);
        }
        let prepared = if self.ahead.is_some() { "backed up ahead" } else { "nothing prepared" };
        row("first sleep", self.first_sleep_s, prepared);
        row("later sleep", self.unchanged_sleep_s, "nothing changed");
        let ratio = format!("every page changed; {:.3} × the plain copy", self.changed_ratio);
        row("later sleep", self.changed_sleep_s, &ratio);
        let ratio = format!("verified; {:.3} × the plain copy", self.wake_ratio);
        row("wake", self.wake_s, &ratio);
        let rest = format!("without the rest of {} ms before it", REST.as_millis());
        row("wake at once", self.wake_at_once_s, &rest);
        let above = self.asleep_bytes.saturating_sub(self.context_bytes);
        let context = self.context_bytes;
        page.row("asleep", &format!("{above} on the device, beside the {context} before"));
        page.row("backups", &format!("{} of host memory", self.backup_bytes));
        let compared = format!(
            "after every wake by digest; after the last, one block in {} byte for byte",
            Model::COMPARED
        );
        let right = if self.right { "right" } else { "WRONG" };
        page.row("contents", &format!("{right} {compared}"));
        page
    }
}
