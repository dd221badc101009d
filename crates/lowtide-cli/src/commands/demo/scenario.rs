//! The result of a scenario, as data: the device's numbers in both ways, and the checks on them.

use lowtide::device::Bytes;
use lowtide::release::{Holder, Planned, Receipt, StagesReport, Verdict};
use serde::Serialize;

use super::away::Away;
use super::samples::Sample;
use super::setup::Setup;
use super::watch::{Observed, State, Watch};

/// The result of a scenario, the usual way and with lowtide.
#[derive(Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// The work that is done, in a line.
    pub(super) how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    /// The memory that must be in use at the peak, by the sizes of the allocations.
    pub(super) largest_bytes: Bytes,
    pub(super) holders: Vec<Holder>,
    /// The device memory of the pool after each update.
    pub(super) reserved_bytes: Vec<Bytes>,
    /// The order in which a shutdown drops.
    pub(super) plan: Vec<Planned>,
    /// The error of a stage that was refused before it was loaded.
    pub(super) refused: Option<String>,
    pub(super) cleaning: Option<Cleaning>,
    /// The idle server off the device.
    pub(super) suspended: Option<Away>,
    pub(super) today: Today,
    pub(super) checks: Vec<Check>,
    pub(super) receipts: Vec<Receipt>,
    /// The states that were held, in the order of time.
    pub(super) states: Vec<State>,
    /// Memory over time, in both ways; empty unless the demo prints JSON.
    pub(super) samples: Vec<Sample>,
    /// Both ways, with the time for which states were held.
    pub(super) took_s: f64,
}

/// The same without a release.
#[derive(Serialize)]
pub(super) struct Today {
    pub(super) how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    pub(super) reserved_bytes: Vec<Bytes>,
}

/// The time spent freeing memory.
#[derive(Serialize)]
pub(super) struct Cleaning {
    pub(super) took_s: f64,
    /// The share of the time that all work took, from 0 to 1.
    pub(super) share: f64,
}

impl Cleaning {
    pub(super) fn new(report: &StagesReport, watch: &Watch<'_>) -> Cleaning {
        let took_s = report.cleaning_s;
        Cleaning { took_s, share: took_s / watch.worked_s().max(f64::MIN_POSITIVE) }
    }
}

/// Something that was checked.
#[derive(Serialize)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) passed: bool,
}

/// The result of one way: the work in a line, the device's numbers, and memory over time.
pub(super) type Ran = (&'static str, Observed, Vec<Sample>);

impl Scenario {
    /// Creates a scenario from its two ways, with no check yet.
    pub(super) fn new(
        name: &'static str,
        (how_today, today, mut samples): Ran,
        (how, with, more_samples): Ran,
        largest_bytes: Bytes,
    ) -> Scenario {
        let mut states = today.states;
        states.extend(with.states);
        samples.extend(more_samples);
        Scenario {
            name,
            verdict: Verdict::Unverified,
            how,
            before_bytes: with.before,
            peak_bytes: with.peak,
            after_bytes: with.after,
            largest_bytes,
            holders: Vec::new(),
            reserved_bytes: Vec::new(),
            plan: Vec::new(),
            refused: None,
            cleaning: None,
            suspended: None,
            today: Today {
                how: how_today,
                before_bytes: today.before,
                peak_bytes: today.peak,
                after_bytes: today.after,
                reserved_bytes: Vec::new(),
            },
            checks: Vec::new(),
            receipts: Vec::new(),
            states,
            samples,
            took_s: 0.0,
        }
    }

    /// Adds a check and its result.
    pub(super) fn check(&mut self, passed: bool, what: impl Into<String>) {
        self.checks.push(Check { what: what.into(), passed });
    }

    /// Checks that no more memory was in use than was needed at once.
    pub(super) fn check_peak(&mut self, setup: &Setup, blocks: u64, what: &str) {
        let (peak, largest) = (self.peak_bytes, self.largest_bytes);
        let passed = setup.same_in_blocks(peak, largest, blocks);
        self.check(passed, format!("the peak, {peak}, is {what}, {largest}"));
    }

    /// Checks the memory in use at the end.
    pub(super) fn check_after(&mut self, setup: &Setup, wanted: Bytes, what: &str) {
        let after = self.after_bytes;
        self.check(setup.same(after, wanted), format!("{after} in use at the end: {what}"));
    }

    /// Sets the verdict: `released` if every check passed, and that of the last receipt otherwise.
    pub(super) fn judged(mut self) -> Scenario {
        let last = self.receipts.last().map(|receipt| receipt.verdict);
        self.verdict = match last {
            _ if self.is_proved() => Verdict::Released,
            Some(verdict) if verdict != Verdict::Released => verdict,
            _ => Verdict::Partial,
        };
        self
    }

    /// Returns whether every check passed.
    pub(super) fn is_proved(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.passed)
    }

    /// Returns the checks that failed.
    pub(super) fn failed_checks(&self) -> impl Iterator<Item = &str> {
        self.checks.iter().filter(|check| !check.passed).map(|check| check.what.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        let observed =
            || Observed { before: Bytes(0), peak: Bytes(2), after: Bytes(0), states: Vec::new() };
        let way = |how| (how, observed(), Vec::new());
        Scenario::new("a scenario", way("so"), way("otherwise"), Bytes(2))
    }

    #[test]
    fn a_scenario_is_proved_by_its_checks_alone() {
        assert_eq!(
            scenario().judged().verdict,
            Verdict::Partial,
            "nothing checked, nothing proved"
        );
        let mut proved = scenario();
        proved.check(true, "this");
        assert_eq!(proved.judged().verdict, Verdict::Released);
        let mut half = scenario();
        half.check(true, "this");
        half.check(false, "that");
        let half = half.judged();
        assert_eq!((half.verdict, half.is_proved()), (Verdict::Partial, false));
        assert_eq!(half.failed_checks().collect::<Vec<_>>(), ["that"]);
    }
}
