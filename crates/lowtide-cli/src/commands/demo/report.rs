//! What people read: each act when it is over, and the closing table.

use lowtide::{Bytes, Verdict};

use super::act::{Act, Cleaning};
use crate::page::Page;

/// One act: both ways, its receipts, what it proves.
pub(super) fn act(act: &Act, number: usize, what: &str) -> Page {
    let mut page = Page::default();
    page.title(&format!("{number}. {}", act.name), what);
    let numbers = |[before, peak, after]: [Bytes; 3]| {
        format!("{before} before, {peak} at the peak, {after} after")
    };
    let today = &act.today;
    page.row("today", today.how);
    page.row("", &numbers([today.before_bytes, today.peak_bytes, today.after_bytes]));
    reserved(&mut page, &today.reserved_bytes);
    page.row("with lowtide", act.how);
    page.row("", &numbers([act.before_bytes, act.peak_bytes, act.after_bytes]));
    reserved(&mut page, &act.reserved_bytes);
    for (step, index) in act.plan.iter().zip(1..) {
        let bytes = step.bytes.map_or_else(String::new, |bytes| format!(", {bytes}"));
        let borrows = match step.borrows.as_slice() {
            [] => String::new(),
            names => format!(", borrows {}", names.join(", ")),
        };
        let name = if index == 1 { "plan" } else { "" };
        page.row(name, &format!("{index}. {}{bytes}{borrows}", step.name));
    }
    if let Some(refused) = &act.refused {
        page.row("refused", refused);
    }
    if let Some(Cleaning { took_s, share }) = act.cleaning {
        page.row(
            "cleaning",
            &format!("{:.1} ms, {:.1} % of the time", took_s * 1e3, share * 100.0),
        );
    }
    receipts(&mut page, act);
    for claim in &act.claims {
        page.verdict("proved", claim.holds, &claim.what, None);
    }
    page.row("verdict", &act.verdict.to_string());
    page.blank();
    page
}

fn reserved(page: &mut Page, reserved: &[Bytes]) {
    if let [first, .., last] = reserved {
        let updates = reserved.len();
        page.row("", &format!("reserved: {first} after update 1, {last} after update {updates}"));
    }
}

// The last one whole, and those that did not release; a line of the others, which read alike.
fn receipts(page: &mut Page, act: &Act) {
    page.line("  receipts");
    let last = act.receipts.len().saturating_sub(1);
    for (index, receipt) in act.receipts.iter().enumerate() {
        if index < last && receipt.verdict == Verdict::Released {
            page.line(&format!("    {}", receipt.line()));
            continue;
        }
        for line in receipt.to_string().lines() {
            page.line(&format!("    {line}"));
        }
    }
}

/// All acts.
pub(super) fn table(acts: &[Act]) -> Page {
    let mut page = Page::default();
    let heads = ["today: peak", "left", "lowtide: peak", "left"];
    let [one, two, three, four] = heads;
    page.line(&format!("{:<15}{one:>15}{two:>15}{three:>16}{four:>15}  verdict", "act"));
    for act in acts {
        let bytes = [act.today.peak_bytes, act.today.after_bytes, act.peak_bytes, act.after_bytes];
        let [one, two, three, four] = bytes.map(|bytes| bytes.to_string());
        let (name, verdict) = (act.name, act.verdict);
        page.line(&format!("{name:<15}{one:>15}{two:>15}{three:>16}{four:>15}  {verdict}"));
    }
    page
}
