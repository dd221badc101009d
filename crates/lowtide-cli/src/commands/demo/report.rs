//! The text of the demo: each scenario when it is over, and the table at the end.

use lowtide::device::Bytes;

use super::scenario::{Cleaning, Scenario};
use crate::text::page::Page;

/// Returns a scenario as text: both ways, the receipts, the checks.
pub(super) fn scenario(scenario: &Scenario, number: usize, about: &str, in_full: bool) -> Page {
    let mut page = Page::default();
    page.title(&format!("{number}. {}", scenario.name), about);
    let numbers = |[before, peak, after]: [Bytes; 3]| {
        format!("{before} before, {peak} at the peak, {after} after")
    };
    let today = &scenario.today;
    page.row("today", today.how);
    page.row("", &numbers([today.before_bytes, today.peak_bytes, today.after_bytes]));
    reserved(&mut page, &today.reserved_bytes);
    page.row("with lowtide", scenario.how);
    page.row("", &numbers([scenario.before_bytes, scenario.peak_bytes, scenario.after_bytes]));
    reserved(&mut page, &scenario.reserved_bytes);
    for (step, index) in scenario.plan.iter().zip(1..) {
        let bytes = step.bytes.map_or_else(String::new, |bytes| format!(", {bytes}"));
        let borrows = match step.borrows.as_slice() {
            [] => String::new(),
            names => format!(", borrows {}", names.join(", ")),
        };
        let name = if index == 1 { "plan" } else { "" };
        page.row(name, &format!("{index}. {}{bytes}{borrows}", step.name));
    }
    if let Some(refused) = &scenario.refused {
        page.row("refused", refused);
    }
    if let Some(Cleaning { took_s, share }) = scenario.cleaning {
        page.row(
            "cleaning",
            &format!("{:.1} ms, {:.1} % of the time", took_s * 1e3, share * 100.0),
        );
    }
    if let Some(suspended) = &scenario.suspended {
        page.row("suspended", &suspended.words());
    }
    receipts(&mut page, scenario, in_full);
    for check in &scenario.checks {
        page.verdict("confirmed", check.passed, &check.what, None);
    }
    page.row("verdict", &scenario.verdict.to_string());
    page.blank();
    page
}

fn reserved(page: &mut Page, reserved: &[Bytes]) {
    if let [first, .., last] = reserved {
        let updates = reserved.len();
        page.row("", &format!("reserved: {first} after update 1, {last} after update {updates}"));
    }
}

fn receipts(page: &mut Page, scenario: &Scenario, in_full: bool) {
    page.line("  receipts");
    for receipt in &scenario.receipts {
        let text = if in_full { receipt.detailed().to_string() } else { receipt.to_string() };
        for line in text.lines() {
            page.line(&format!("    {line}"));
        }
    }
}

/// Returns the table of all scenarios.
pub(super) fn table(scenarios: &[Scenario]) -> Page {
    let mut page = Page::default();
    let mut row = |name: &str, [one, two, three, four]: [String; 4], verdict: &str| {
        page.line(&format!("{name:<13}{one:>14}{two:>13}{three:>15}{four:>13}  {verdict}"));
    };
    let heads = ["today: peak", "left", "lowtide: peak", "left"];
    row("scenario", heads.map(str::to_owned), "verdict");
    for scenario in scenarios {
        let today = &scenario.today;
        let bytes =
            [today.peak_bytes, today.after_bytes, scenario.peak_bytes, scenario.after_bytes];
        row(scenario.name, bytes.map(|bytes| bytes.to_string()), &scenario.verdict.to_string());
    }
    page
}
