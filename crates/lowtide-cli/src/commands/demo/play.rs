//! A scenario while it runs: the device's own numbers before, at the peak, after and over time, and the
//! checks on them.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use lowtide::device::Bytes;
use lowtide::release::{StagesReport, Verdict};
use serde::Serialize;
use serde_json::json;

use super::scenario::{Check, Figures, Hold, Sample, Scenario, WAYS, Way};
use super::setup::Setup;

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

/// A scenario while it runs.
pub(super) struct Play<'a> {
    pub(super) setup: &'a Setup,
    pub(super) way: Way,
    /// The memory in use before this way.
    pub(super) start: Bytes,
    /// The time at which the numbers of this way begin.
    began: Instant,
    pub(super) scenario: Scenario,
}

impl Play<'_> {
    /// Runs a scenario the usual way, then with lowtide.
    pub(super) fn run(setup: &Setup, entry: &Entry) -> anyhow::Result<Scenario> {
        let (way, start, began) = (Way::Today, Bytes::ZERO, Instant::now());
        let scenario = Scenario::new(entry.name, [entry.today, entry.lowtide]);
        let mut play = Play { setup, way, start, began, scenario };
        for ((way, words), run) in WAYS.into_iter().zip(entry.ways) {
            setup.content.progress.say(format!("{}, {words}", entry.name));
            (play.way, play.start) = (way, setup.settled()?);
            let samples = sampled(setup, way, || run(&mut play))?;
            play.scenario.samples.extend(samples);
        }
        let verdict = Some(play.scenario.verdict());
        Ok(Scenario { verdict, took_s: began.elapsed().as_secs_f64(), ..play.scenario })
    }

    /// Begins the numbers of this way with the memory in use now.
    pub(super) fn begin(&mut self) -> anyhow::Result<Bytes> {
        self.figures().before_bytes = self.hold("before")?;
        self.began = Instant::now();
        Ok(self.figures().before_bytes)
    }

    /// Ends them with the memory in use now.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.figures().after_bytes = self.hold("after")?;
        Ok(())
    }

    /// Reads the memory in use, for the peak.
    pub(super) fn look(&mut self) -> anyhow::Result<Bytes> {
        let bytes = self.setup.in_use()?;
        let figures = self.figures();
        figures.peak_bytes = figures.peak_bytes.max(bytes);
        Ok(bytes)
    }

    /// Reads the memory in use, and holds if this is the peak.
    pub(super) fn look_at_peak(&mut self, is_peak: bool) -> anyhow::Result<Bytes> {
        if is_peak { self.hold("peak") } else { self.look() }
    }

    /// Reads the memory in use, and lets nothing change for the time of `--hold`.
    pub(super) fn hold(&mut self, name: &'static str) -> anyhow::Result<Bytes> {
        self.look()?;
        let (bytes, way, from_s) = (self.setup.settled()?, self.way, since_1970());
        thread::sleep(self.setup.hold);
        self.scenario.states.push(Hold { way, name, bytes, from_s, until_s: since_1970() });
        Ok(bytes)
    }

    pub(super) fn figures(&mut self) -> &mut Figures {
        let Scenario { today, with, .. } = &mut self.scenario;
        if self.way == Way::Today { today } else { with }
    }

    /// Notes something that only some scenarios show: a value in the JSON, and rows of text.
    pub(super) fn note(&mut self, key: &'static str, value: impl Serialize, rows: Vec<String>) {
        self.scenario.notes.insert(key, json!(value));
        let names = [key].into_iter().chain(std::iter::repeat(""));
        self.scenario.rows.extend(names.zip(rows));
    }

    /// Notes how much of the time since the beginning was spent freeing memory.
    pub(super) fn note_cleaning(&mut self, report: &StagesReport) {
        // Since then the peak was held.
        let worked_s = self.began.elapsed().saturating_sub(self.setup.hold).as_secs_f64();
        let (took_s, share) =
            (report.cleaning_s, report.cleaning_s / worked_s.max(f64::MIN_POSITIVE));
        let row = format!("{:.1} ms, {:.1} % of the time", took_s * 1e3, share * 100.0);
        self.note("cleaning", json!({ "took_s": took_s, "share": share }), vec![row]);
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

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

// Runs `work` while a thread takes samples. Returns those that differ from the one before or from the one
// after: a line through them is the line through all.
fn sampled(
    setup: &Setup,
    way: Way,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Sample>> {
    if !setup.takes_samples {
        return work().map(|()| Vec::new());
    }
    let (stop, stopped) = mpsc::channel::<()>();
    let sample = move || {
        let mut samples = Vec::new();
        loop {
            // A device that does not answer now answers the next time, or fails the scenario.
            if let Ok(bytes) = setup.in_use() {
                add(&mut samples, Sample { way, at_s: since_1970(), bytes });
            }
            if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return samples;
            }
        }
    };
    thread::scope(|scope| {
        let sampler = thread::Builder::new().spawn_scoped(scope, sample);
        let sampler = sampler.context("starting the thread that takes samples")?;
        let done = work();
        drop(stop);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
        done.map(|()| samples)
    })
}

// Of a row of equal samples the first and the last are kept.
fn add(samples: &mut Vec<Sample>, sample: Sample) {
    if let [.., before, last] = samples.as_slice()
        && [before.bytes, last.bytes] == [sample.bytes; 2]
    {
        samples.pop();
    }
    samples.push(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_equal_samples_is_kept_by_its_ends() {
        let mut samples = Vec::new();
        for (bytes, at_s) in
            [5, 5, 5, 7, 5, 5, 5].into_iter().zip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
        {
            add(&mut samples, Sample { way: Way::Today, at_s, bytes: Bytes(bytes) });
        }
        let kept: Vec<_> = samples.iter().map(|sample| (sample.at_s, sample.bytes.0)).collect();
        assert_eq!(kept, [(1.0, 5), (3.0, 5), (4.0, 7), (5.0, 5), (7.0, 5)]);
    }
}
