//! The device's own numbers while one way of a scenario runs: before, at the peak, after, and over time.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use lowtide::device::Bytes;
use serde::Serialize;

use super::setup::Setup;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(5);

/// The usual way, or with lowtide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Today,
    Lowtide,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Way::Today { "today" } else { "with lowtide" })
    }
}

/// A time in which nothing changes, as long as `--hold` says, so that it can be seen from outside.
#[derive(Serialize)]
pub(super) struct Hold {
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
pub(super) struct Sample {
    way: Way,
    at_s: f64,
    bytes: Bytes,
}

/// Asks the device for the memory in use whenever some was allocated.
pub(super) struct Watch<'a> {
    setup: &'a Setup,
    way: Way,
    pub(super) before: Bytes,
    pub(super) peak: Bytes,
    pub(super) after: Bytes,
    pub(super) holds: Vec<Hold>,
    began: Instant,
}

impl<'a> Watch<'a> {
    /// Begins with the memory in use now.
    pub(super) fn begin(setup: &'a Setup, way: Way) -> anyhow::Result<Watch<'a>> {
        let (none, holds, began) = (Bytes::ZERO, Vec::new(), Instant::now());
        let mut watch = Watch { setup, way, before: none, peak: none, after: none, holds, began };
        watch.before = watch.hold("before")?;
        watch.began = Instant::now();
        Ok(watch)
    }

    /// Returns the time since the beginning, without the holds.
    pub(super) fn worked_s(&self) -> f64 {
        let held = self.setup.hold * (self.holds.len() as u32 - 1);
        self.began.elapsed().saturating_sub(held).as_secs_f64()
    }

    /// Reads the memory in use, for the peak.
    pub(super) fn look(&mut self) -> anyhow::Result<Bytes> {
        let bytes = self.setup.in_use()?;
        self.peak = self.peak.max(bytes);
        Ok(bytes)
    }

    /// Reads the memory in use, and holds if this is the peak.
    pub(super) fn look_at_peak(&mut self, is_peak: bool) -> anyhow::Result<()> {
        if is_peak { self.hold("peak") } else { self.look() }.map(drop)
    }

    /// Reads the memory in use, and lets nothing change for the time of `--hold`.
    pub(super) fn hold(&mut self, name: &'static str) -> anyhow::Result<Bytes> {
        self.look()?;
        let (bytes, way, from_s) = (self.setup.settled()?, self.way, since_1970());
        thread::sleep(self.setup.hold);
        self.holds.push(Hold { way, name, bytes, from_s, until_s: since_1970() });
        Ok(bytes)
    }

    /// Ends with the memory in use now.
    pub(super) fn end(mut self) -> anyhow::Result<Watch<'a>> {
        self.after = self.hold("after")?;
        Ok(self)
    }
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Runs `work` while a thread takes samples. Returns those that differ from the one before or from the
/// one after: a line through them is the line through all.
pub(super) fn sampled<T>(
    setup: &Setup,
    way: Way,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Vec<Sample>)> {
    if !setup.takes_samples {
        return Ok((work()?, Vec::new()));
    }
    let (stop, stopped) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let sample = move || {
            let mut samples: Vec<Sample> = Vec::new();
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
        let sampler = thread::Builder::new().spawn_scoped(scope, sample);
        let sampler = sampler.context("starting the thread that takes samples")?;
        let done = work();
        drop(stop);
        let samples = sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
        Ok((done?, samples))
    })
}

// Of a row of equal samples the first and the last are kept.
fn add(samples: &mut Vec<Sample>, sample: Sample) {
    if let [.., before, last] = samples.as_slice()
        && before.bytes == last.bytes
        && last.bytes == sample.bytes
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
        for (at_s, bytes) in [(1.0, 5), (2.0, 5), (3.0, 5), (4.0, 7), (5.0, 5), (6.0, 5), (7.0, 5)]
        {
            add(&mut samples, Sample { way: Way::Today, at_s, bytes: Bytes(bytes) });
        }
        let kept: Vec<_> = samples.iter().map(|sample| (sample.at_s, sample.bytes.0)).collect();
        assert_eq!(kept, [(1.0, 5), (3.0, 5), (4.0, 7), (5.0, 5), (7.0, 5)]);
    }
}
