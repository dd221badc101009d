//! The result of a scenario: the device's numbers in both ways, the checks on them, and the text.

use std::collections::BTreeMap;

use lowtide::device::Bytes;
use lowtide::release::{Receipt, Verdict};
use serde::Serialize;
use serde_json::Value;

use crate::text::page::Page;

/// The usual way, or with lowtide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Today,
    Lowtide,
}

/// Both ways in their order, and in words.
pub(super) const WAYS: [(Way, &str); 2] = [(Way::Today, "today"), (Way::Lowtide, "with lowtide")];

/// The result of a scenario, the usual way and with lowtide.
#[derive(Default, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The verdict, once every check was done.
    pub(super) verdict: Option<Verdict>,
    #[serde(flatten)]
    pub(super) with: Figures,
    /// The same without a release.
    pub(super) today: Figures,
    /// The memory that must be in use at the peak, by the sizes of the allocations.
    pub(super) largest_bytes: Bytes,
    /// What only some scenarios show, by its key in the JSON.
    #[serde(flatten)]
    pub(super) notes: BTreeMap<&'static str, Value>,
    /// The same for people: the name of a row, and its text.
    #[serde(skip)]
    pub(super) rows: Vec<(&'static str, String)>,
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
    pub(super) how: &'static str,
    pub(super) before_bytes: Bytes,
    pub(super) peak_bytes: Bytes,
    pub(super) after_bytes: Bytes,
    /// The device memory of the pool after each update.
    pub(super) reserved_bytes: Vec<Bytes>,
}

/// Something that was checked.
#[derive(Serialize)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) passed: bool,
}

/// A time in which nothing changes, as long as `--hold` says, so that it can be seen from outside.
#[derive(Serialize)]
pub(super) struct Hold {
    pub(super) way: Way,
    pub(super) name: &'static str,
    /// The device memory in use.
    pub(super) bytes: Bytes,
    /// The beginning and the end, in seconds since 1970.
    pub(super) from_s: f64,
    pub(super) until_s: f64,
}

/// The device memory in use at a time, in seconds since 1970.
#[derive(Serialize)]
pub(super) struct Sample {
    pub(super) way: Way,
    pub(super) at_s: f64,
    pub(super) bytes: Bytes,
}

impl Scenario {
    /// Creates a scenario with no number and no check yet.
    pub(super) fn new(name: &'static str, how: [&'static str; 2]) -> Scenario {
        let [today, with] = how.map(|how| Figures { how, ..Figures::default() });
        let (list, none) = (Value::Array(Vec::new()), Value::Null);
        let notes = [("holders", &list), ("plan", &list)].into_iter();
        let notes = notes.chain(["refused", "cleaning", "suspended"].map(|key| (key, &none)));
        let notes = notes.map(|(key, value)| (key, value.clone())).collect();
        Scenario { name, with, today, notes, ..Scenario::default() }
    }

    /// Returns the verdict: `released` if every check passed, and that of the last receipt otherwise.
    pub(super) fn verdict(&self) -> Verdict {
        let last = self.receipts.last().map(|receipt| receipt.verdict);
        let is_proved = !self.checks.is_empty() && self.checks.iter().all(|check| check.passed);
        match last {
            _ if is_proved => Verdict::Released,
            Some(verdict) if verdict != Verdict::Released => verdict,
            _ => Verdict::Partial,
        }
    }

    /// Returns a sentence for each check that failed.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.checks.iter().filter(|check| !check.passed);
        failed.map(|check| format!("{} ({}): {}", self.name, self.verdict(), check.what))
    }

    /// Returns the scenario as text: both ways, the receipts, the checks.
    pub(super) fn text(&self, number: usize, about: &str, in_full: bool) -> Page {
        let mut page = Page::default();
        page.title(&format!("{number}. {}", self.name), about);
        for ((_, way), figures) in WAYS.into_iter().zip([&self.today, &self.with]) {
            let Figures { how, before_bytes, peak_bytes, after_bytes, reserved_bytes } = figures;
            page.row(way, how);
            let peak = format!("{peak_bytes} at the peak");
            page.row("", &format!("{before_bytes} before, {peak}, {after_bytes} after"));
            if let ([first, .., last], count) = (&reserved_bytes[..], reserved_bytes.len()) {
                let first = format!("{first} after update 1");
                page.row("", &format!("reserved: {first}, {last} after update {count}"));
            }
        }
        self.rows.iter().for_each(|(name, text)| page.row(name, text));
        page.line("  receipts");
        for receipt in &self.receipts {
            let text = if in_full { receipt.detailed().to_string() } else { receipt.to_string() };
            text.lines().for_each(|line| page.line(&format!("    {line}")));
        }
        for check in &self.checks {
            page.verdict("confirmed", check.passed, &check.what, None);
        }
        page.row("verdict", &self.verdict().to_string());
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
            let check = |passed: &bool| Check { what: "this".to_owned(), passed: *passed };
            scenario.checks.extend(checks.iter().map(check));
            scenario
        };
        assert_eq!(judged(&[]).verdict(), Verdict::Partial, "nothing checked, nothing proved");
        assert_eq!(judged(&[true]).verdict(), Verdict::Released);
        let half: Vec<_> = judged(&[true, false]).failures().collect();
        assert_eq!(half, ["a scenario (partial): this"]);
    }
}
