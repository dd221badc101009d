//! A scenario, the usual way and with lowtide: the device's own numbers before, at the peak, after and over
//! time, the checks on them, and the text.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use lowtide::device::Bytes;
use lowtide::pool::{Pool, SleepPolicy, Tag};
use lowtide::release::{Holder, Planned, Receipt, Releaser, StagesReport, Verdict};
use serde::Serialize;
use serde_json::{Value, json};

use super::setup::Setup;
use crate::content::Filled;
use crate::text::clock::since_1970;
use crate::text::page::Page;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(5);

/// A scenario of the demo.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// The subject of the scenario, in a line.
    pub(super) about: &'static str,
    /// The work the usual way and with lowtide, in a line each.
    pub(super) today: &'static str,
    pub(super) lowtide: &'static str,
    /// Returns the bytes that it fills and compares.
    pub(super) planned: fn(&Setup) -> Bytes,
    /// Run the usual way, and with lowtide. The second also checks the results of both.
    pub(super) ways: [fn(&mut Play<'_>) -> anyhow::Result<()>; 2],
}

/// The usual way, or with lowtide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Today,
    Lowtide,
}

/// Both ways in their order, and in words.
const WAYS: [(Way, &str); 2] = [(Way::Today, "today"), (Way::Lowtide, "with lowtide")];

/// The result of a scenario.
#[derive(Default, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The verdict, once every check was done.
    verdict: Option<Verdict>,
    #[serde(flatten)]
    pub(super) with: Figures,
    /// The same without a release.
    pub(super) today: Figures,
    /// The memory that must be in use at the peak, by the sizes of the allocations.
    largest_bytes: Bytes,
    pub(super) holders: Vec<Holder>,
    pub(super) plan: Vec<Planned>,
    pub(super) refused: Option<String>,
    cleaning: Option<Value>,
    pub(super) suspended: Option<Value>,
    /// What only some scenarios show, for people: the name of a row, and its text.
    #[serde(skip)]
    pub(super) rows: Vec<(&'static str, String)>,
    checks: Vec<Check>,
    pub(super) receipts: Vec<Receipt>,
    /// The times in which nothing changed.
    states: Vec<Hold>,
    /// Memory over time, in both ways.
    samples: Vec<Sample>,
    /// Both ways, with the time of the holds.
    took_s: f64,
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

/// Something that was checked.
#[derive(Serialize)]
struct Check {
    what: String,
    passed: bool,
}

/// A time in which nothing changes, as long as `--hold` says, so that it can be seen from outside.
#[derive(Serialize)]
struct Hold {
    way: Way,
    name: &'static str,
    /// The device memory in use.
    bytes: Bytes,
    /// The beginning and the end, in seconds since 1970.
    from_s: f64,
    until_s: f64,
}

/// The device memory in use at a time, in seconds since 1970.
#[derive(Serialize)]
struct Sample {
    way: Way,
    at_s: f64,
    bytes: Bytes,
}

impl Scenario {
    /// Runs a scenario the usual way, then with lowtide, each with a pool of its own.
    pub(super) fn run(setup: &Setup, entry: &Entry) -> anyhow::Result<Scenario> {
        let began = Instant::now();
        let figures = |how| Figures { how, ..Figures::default() };
        let (today, with) = (figures(entry.today), figures(entry.lowtide));
        let mut scenario = Scenario { name: entry.name, today, with, ..Scenario::default() };
        for ((way, words), run) in WAYS.into_iter().zip(entry.ways) {
            let start = setup.settled()?;
            let title = format!("{}, {words}", entry.name);
            setup.content.progress.say(title.clone());
            let work = || {
                let (pool, releaser) = &setup.pool()?;
                let scenario = &mut scenario;
                run(&mut Play { setup, pool, releaser, way, title, start, began, scenario })
            };
            let samples = beside(|enough| Ok(sample(setup, way, enough)), work)?;
            scenario.samples.extend(samples);
        }
        let verdict = Some(scenario.verdict());
        Ok(Scenario { verdict, took_s: began.elapsed().as_secs_f64(), ..scenario })
    }

    /// Returns the verdict: `released` if every check passed, and that of the last receipt otherwise.
    pub(super) fn verdict(&self) -> Verdict {
        if !self.checks.is_empty() && self.checks.iter().all(|check| check.passed) {
            return Verdict::Released;
        }
        let last = self.receipts.last().map(|receipt| receipt.verdict);
        last.filter(|verdict| *verdict != Verdict::Released).unwrap_or(Verdict::Partial)
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
            page.row(way, figures.how);
            let Figures { before_bytes: before, peak_bytes: peak, after_bytes: after, .. } =
                figures;
            page.row("", &format!("{before} before, {peak} at the peak, {after} after"));
            if let reserved @ [first, .., last] = &*figures.reserved_bytes {
                let last = format!("{last} after update {}", reserved.len());
                page.row("", &format!("reserved: {first} after update 1, {last}"));
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

/// A size in units, and the number of its blocks.
pub(super) type Size = (u64, u64);

/// A scenario while one of its ways runs.
pub(super) struct Play<'a> {
    pub(super) setup: &'a Setup,
    pub(super) pool: &'a Pool,
    pub(super) releaser: &'a Releaser,
    pub(super) way: Way,
    /// The scenario and the way, in words.
    title: String,
    /// The memory in use before this way.
    pub(super) start: Bytes,
    /// The time at which the numbers of this way begin.
    began: Instant,
    pub(super) scenario: &'a mut Scenario,
}

impl Play<'_> {
    /// Shows what is being done.
    pub(super) fn say(&self, what: &str) {
        self.setup.content.progress.say(format!("{}: {what}", self.title));
    }

    /// Allocates so many units in so many blocks, and fills them.
    pub(super) fn load(&self, tag: Tag, (units, blocks): Size) -> anyhow::Result<Vec<Filled>> {
        self.setup.content.blocks(self.pool, tag, self.setup.units(units), blocks)
    }

    /// Loads weights that a sleep keeps and a cache that it discards.
    pub(super) fn load_server(&self, server: [Size; 2]) -> anyhow::Result<[Vec<Filled>; 2]> {
        let weights = self.pool.tag("weights", SleepPolicy::Offload)?;
        let cache = self.pool.tag("cache", SleepPolicy::Discard)?;
        Ok([self.load(weights, server[0])?, self.load(cache, server[1])?])
    }

    /// Begins the numbers of this way with the memory in use now.
    pub(super) fn begin(&mut self) -> anyhow::Result<Bytes> {
        let bytes = self.hold("before")?;
        (self.figures().before_bytes, self.began) = (bytes, Instant::now());
        Ok(bytes)
    }

    /// Ends them with the memory in use now.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.figures().after_bytes = self.hold("after")?;
        Ok(())
    }

    /// Reads the memory in use, for the peak, and holds if this is it.
    pub(super) fn look(&mut self, is_peak: bool) -> anyhow::Result<Bytes> {
        let (bytes, figures) = (self.setup.in_use()?, self.figures());
        figures.peak_bytes = figures.peak_bytes.max(bytes);
        if is_peak { self.hold("peak") } else { Ok(bytes) }
    }

    /// Reads the memory in use, and lets nothing change for the time of `--hold`.
    pub(super) fn hold(&mut self, name: &'static str) -> anyhow::Result<Bytes> {
        self.look(false)?;
        let (bytes, way, from_s) = (self.setup.settled()?, self.way, since_1970());
        thread::sleep(self.setup.hold);
        self.scenario.states.push(Hold { way, name, bytes, from_s, until_s: since_1970() });
        Ok(bytes)
    }

    pub(super) fn figures(&mut self) -> &mut Figures {
        let Scenario { today, with, .. } = &mut *self.scenario;
        if self.way == Way::Today { today } else { with }
    }

    /// Notes how much of the time since the beginning was spent freeing memory.
    pub(super) fn note_cleaning(&mut self, report: &StagesReport) {
        // Since then the peak was held.
        let worked_s = self.began.elapsed().saturating_sub(self.setup.hold).as_secs_f64();
        let took_s = report.cleaning_s;
        let share = took_s / worked_s.max(f64::MIN_POSITIVE);
        self.scenario.cleaning = Some(json!({ "took_s": took_s, "share": share }));
        let text = format!("{:.1} ms, {:.1} % of the time", took_s * 1e3, share * 100.0);
        self.scenario.rows.push(("cleaning", text));
    }

    /// Adds a check and its result.
    pub(super) fn check(&mut self, passed: bool, what: impl Into<String>) {
        self.scenario.checks.push(Check { what: what.into(), passed });
    }

    /// Checks that no more memory was in use than was needed at once, in so many blocks.
    pub(super) fn check_peak(&mut self, largest: Bytes, blocks: u64, what: &str) {
        self.scenario.largest_bytes = largest;
        let peak = self.scenario.with.peak_bytes;
        let passed = self.setup.same(peak, largest, blocks);
        self.check(passed, format!("the peak, {peak}, is {what}, {largest}"));
    }

    /// Checks the memory in use at the end.
    pub(super) fn check_after(&mut self, wanted: Bytes, what: &str) {
        let after = self.scenario.with.after_bytes;
        let passed = self.setup.same(after, wanted, 0);
        self.check(passed, format!("{after} in use at the end: {what}"));
    }

    /// Checks the verdicts of all receipts.
    pub(super) fn check_receipts(&mut self) {
        let mut verdicts = self.scenario.receipts.iter().map(|receipt| receipt.verdict);
        let passed = verdicts.all(|verdict| verdict == Verdict::Released);
        self.check(passed, "every receipt says released");
    }
}

/// Runs `work` while another thread does `other`, which ends once it is told that this is enough.
pub(super) fn beside<T: Send>(
    other: impl FnOnce(&AtomicBool) -> anyhow::Result<T> + Send,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<T> {
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || other(&enough));
        let thread = thread.context("starting a thread of the demo")?;
        let done = work();
        // The other ends even if the work failed.
        enough.store(true, SeqCst);
        done.and(thread.join().map_err(|_| anyhow!("a thread of the demo panicked"))?)
    })
}

// Takes samples until there are enough, and one more. Of a row of equal samples the first and the last are
// kept: a line through them is the line through all.
fn sample(setup: &Setup, way: Way, enough: &AtomicBool) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        let is_last = enough.load(SeqCst);
        // A device that does not answer now answers the next time, or fails the scenario.
        if let Ok(bytes) = setup.in_use() {
            let at_s = since_1970();
            match samples.as_mut_slice() {
                [.., before, last] if [before.bytes, last.bytes] == [bytes; 2] => last.at_s = at_s,
                _ => samples.push(Sample { way, at_s, bytes }),
            }
        }
        if is_last {
            return samples;
        }
        thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_proved_by_its_checks_alone() {
        let judged = |passed: &[bool]| {
            let check = |passed: &bool| Check { what: "this".to_owned(), passed: *passed };
            let checks = passed.iter().map(check).collect();
            Scenario { name: "a scenario", checks, ..Scenario::default() }
        };
        assert_eq!(judged(&[]).verdict(), Verdict::Partial, "nothing checked, nothing proved");
        assert_eq!(judged(&[true]).verdict(), Verdict::Released);
        let half: Vec<_> = judged(&[true, false]).failures().collect();
        assert_eq!(half, ["a scenario (partial): this"]);
    }
}
