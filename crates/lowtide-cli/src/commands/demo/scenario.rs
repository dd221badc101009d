//! The result of a scenario: the device's numbers in both ways, the checks on them, and the text.

use lowtide::device::Bytes;
use lowtide::release::{Holder, Planned, Receipt, StagesReport, Verdict};
use serde::Serialize;

use super::setup::Setup;
use super::suspended::Suspension;
use super::watch::{self, Hold, Sample, Watch, Way};
use crate::text::page::Page;

/// The result of a scenario, the usual way and with lowtide.
#[derive(Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    #[serde(flatten)]
    pub(super) with: Figures,
    /// The same without a release.
    pub(super) today: Figures,
    /// The memory that must be in use at the peak, by the sizes of the allocations.
    pub(super) largest_bytes: Bytes,
    pub(super) holders: Vec<Holder>,
    /// The order in which a shutdown drops.
    pub(super) plan: Vec<Planned>,
    /// The error of a stage that was refused before it was loaded.
    pub(super) refused: Option<String>,
    pub(super) cleaning: Option<Cleaning>,
    /// The idle server off the device.
    pub(super) suspended: Option<Suspension>,
    pub(super) checks: Vec<Check>,
    pub(super) receipts: Vec<Receipt>,
    /// The times in which nothing changed.
    pub(super) states: Vec<Hold>,
    /// Memory over time, in both ways; empty unless the demo prints JSON.
    pub(super) samples: Vec<Sample>,
    /// Both ways, with the time of the holds.
    pub(super) took_s: f64,
}

/// The device's numbers in one way.
#[derive(Default, Serialize)]
pub(super) struct Figures {
    /// The work that is done, in a line.
    how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    /// The device memory of the pool after each update.
    pub(super) reserved_bytes: Vec<Bytes>,
}

/// The time spent freeing memory.
#[derive(Serialize)]
pub(super) struct Cleaning {
    took_s: f64,
    /// The share of the time that all work took, from 0 to 1.
    share: f64,
}

/// Something that was checked.
#[derive(Serialize)]
pub(super) struct Check {
    what: String,
    passed: bool,
}

impl Scenario {
    /// Creates a scenario with no number and no check yet.
    pub(super) fn new(name: &'static str, [how_today, how]: [&'static str; 2]) -> Scenario {
        Scenario {
            name,
            verdict: Verdict::Unverified,
            with: Figures { how, ..Figures::default() },
            today: Figures { how: how_today, ..Figures::default() },
            largest_bytes: Bytes::ZERO,
            holders: Vec::new(),
            plan: Vec::new(),
            refused: None,
            cleaning: None,
            suspended: None,
            checks: Vec::new(),
            receipts: Vec::new(),
            states: Vec::new(),
            samples: Vec::new(),
            took_s: 0.0,
        }
    }

    /// Runs one way and keeps its numbers.
    pub(super) fn play<'a>(
        &mut self,
        setup: &Setup,
        way: Way,
        work: impl FnOnce(&mut Scenario) -> anyhow::Result<Watch<'a>>,
    ) -> anyhow::Result<()> {
        let (watch, samples) = watch::sampled(setup, way, || work(self))?;
        let figures = if way == Way::Today { &mut self.today } else { &mut self.with };
        figures.before_bytes = watch.before;
        figures.peak_bytes = watch.peak;
        figures.after_bytes = watch.after;
        self.states.extend(watch.holds);
        self.samples.extend(samples);
        Ok(())
    }

    /// Notes how much of the time since the beginning was spent freeing memory.
    pub(super) fn note_cleaning(&mut self, report: &StagesReport, watch: &Watch<'_>) {
        let took_s = report.cleaning_s;
        let share = took_s / watch.worked_s().max(f64::MIN_POSITIVE);
        self.cleaning = Some(Cleaning { took_s, share });
    }

    /// Adds a check and its result.
    pub(super) fn check(&mut self, passed: bool, what: impl Into<String>) {
        self.checks.push(Check { what: what.into(), passed });
    }

    /// Checks that no more memory was in use than was needed at once, in so many blocks.
    pub(super) fn check_peak(&mut self, setup: &Setup, largest: Bytes, blocks: u64, what: &str) {
        self.largest_bytes = largest;
        let peak = self.with.peak_bytes;
        let passed = setup.same_in_blocks(peak, largest, blocks);
        self.check(passed, format!("the peak, {peak}, is {what}, {largest}"));
    }

    /// Checks the memory in use at the end.
    pub(super) fn check_after(&mut self, setup: &Setup, wanted: Bytes, what: &str) {
        let after = self.with.after_bytes;
        self.check(setup.same(after, wanted), format!("{after} in use at the end: {what}"));
    }

    /// Checks the verdicts of all receipts.
    pub(super) fn check_receipts(&mut self) {
        let released = self.receipts.iter().all(|receipt| receipt.verdict == Verdict::Released);
        self.check(released, "every receipt says released");
    }

    /// Sets the verdict: `released` if every check passed, and that of the last receipt otherwise.
    pub(super) fn judge(&mut self) {
        let last = self.receipts.last().map(|receipt| receipt.verdict);
        self.verdict = match last {
            _ if self.is_proved() => Verdict::Released,
            Some(verdict) if verdict != Verdict::Released => verdict,
            _ => Verdict::Partial,
        };
    }

    /// Returns whether every check passed.
    pub(super) fn is_proved(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.passed)
    }

    /// Returns a sentence for each check that failed.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.checks.iter().filter(|check| !check.passed);
        failed.map(|check| format!("{} ({}): {}", self.name, self.verdict, check.what))
    }

    /// Returns the scenario as text: both ways, the receipts, the checks.
    pub(super) fn text(&self, number: usize, about: &str, in_full: bool) -> Page {
        let mut page = Page::default();
        page.title(&format!("{number}. {}", self.name), about);
        for (name, figures) in [("today", &self.today), ("with lowtide", &self.with)] {
            let Figures { how, before_bytes, peak_bytes, after_bytes, reserved_bytes } = figures;
            page.row(name, how);
            let numbers = "before, ";
            page.row(
                "",
                &format!("{before_bytes} {numbers}{peak_bytes} at the peak, {after_bytes} after"),
            );
            if let [first, .., last] = reserved_bytes.as_slice() {
                let count = reserved_bytes.len();
                let text = format!("{first} after update 1, {last} after update {count}");
                page.row("", &format!("reserved: {text}"));
            }
        }
        for (step, index) in self.plan.iter().zip(1..) {
            let bytes = step.bytes.map_or_else(String::new, |bytes| format!(", {bytes}"));
            let borrows = match step.borrows.as_slice() {
                [] => String::new(),
                names => format!(", borrows {}", names.join(", ")),
            };
            let name = if index == 1 { "plan" } else { "" };
            page.row(name, &format!("{index}. {}{bytes}{borrows}", step.name));
        }
        if let Some(refused) = &self.refused {
            page.row("refused", refused);
        }
        if let Some(Cleaning { took_s, share }) = self.cleaning {
            let (ms, percent) = (took_s * 1e3, share * 100.0);
            page.row("cleaning", &format!("{ms:.1} ms, {percent:.1} % of the time"));
        }
        if let Some(suspended) = &self.suspended {
            page.row("suspended", &suspended.words());
        }
        page.line("  receipts");
        for receipt in &self.receipts {
            let text = if in_full { receipt.detailed().to_string() } else { receipt.to_string() };
            for line in text.lines() {
                page.line(&format!("    {line}"));
            }
        }
        for check in &self.checks {
            page.verdict("confirmed", check.passed, &check.what, None);
        }
        page.row("verdict", &self.verdict.to_string());
        page.blank();
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_proved_by_its_checks_alone() {
        let judged = |checks: &[bool]| {
            let mut scenario = Scenario::new("a scenario", ["so", "otherwise"]);
            for passed in checks {
                scenario.check(*passed, "this");
            }
            scenario.judge();
            scenario
        };
        assert_eq!(judged(&[]).verdict, Verdict::Partial, "nothing checked, nothing proved");
        assert_eq!(judged(&[true]).verdict, Verdict::Released);
        let half = judged(&[true, false]);
        assert_eq!((half.verdict, half.is_proved()), (Verdict::Partial, false));
        assert_eq!(half.failures().collect::<Vec<_>>(), ["a scenario (partial): this"]);
    }
}
