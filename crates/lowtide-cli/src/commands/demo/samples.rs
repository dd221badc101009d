//! Memory over time: what the device says is in use, asked by a thread of its own while a scenario
//! runs. The picture in the README is drawn from it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use lowtide::device::Bytes;
use serde::Serialize;

use super::setup::Setup;
use super::watch::{Way, since_1970};

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(5);

/// The device memory in use at a time.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    way: Way,
    /// The time, in seconds since 1970.
    at_s: f64,
    bytes: Bytes,
}

/// Runs `work` while a thread takes samples. Returns those that differ from the one before or from the
/// one after: a line through them is the line through all.
pub(super) fn take<T>(
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
        let samples =
            sampler.join().map_err(|_| anyhow::anyhow!("the sampling thread panicked"))?;
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
