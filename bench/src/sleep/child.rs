//! The child process of `lowtide-bench sleep`: it measures one first sleep and the later turns, and writes a
//! JSON line for every part of the work that is done.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide_device::{Bytes, Device, end_with_parent};
use lowtide_pool::{Policy, Pool, PoolSnapshot, Scope};
use serde::{Deserialize, Serialize};

use super::ahead::{self, Ahead};
use super::options::Options;
use crate::model::{Kind, Model};
use lowtide_cli::arguments::devices;
use lowtide_cli::program::ending::Ending;
use lowtide_cli::text::page;

/// The time between a sleep and the wake after it. A driver clears freed memory for some time, on the
/// engine that copies to the device: until it is done a wake, like any other copy, is slower.
pub(super) const REST: Duration = Duration::from_millis(300);

/// A line that the child writes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChildLine {
    /// A part of the work is done.
    Done {
        /// The bytes that were written, put to sleep, woken or copied.
        bytes: Bytes,
    },
    /// The measurements, at the end.
    Measured(Box<Measured>),
}

/// The measurements of one process; times are in seconds.
#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) first_sleep_s: f64,
    /// What preceded the first sleep.
    pub(super) ahead: Option<Ahead>,
    pub(super) unchanged_sleep_s: Vec<f64>,
    pub(super) changed_sleep_s: Vec<f64>,
    pub(super) wake_s: Vec<f64>,
    pub(super) wake_at_once_s: Vec<f64>,
    pub(super) raw_out_s: Vec<f64>,
    pub(super) raw_in_s: Vec<f64>,
    /// The device memory in use before the pool was created.
    pub(super) context_bytes: Bytes,
    /// The device memory in use during the first sleep.
    pub(super) asleep_bytes: Bytes,
    pub(super) backup_bytes: Bytes,
    pub(super) right: bool,
    pub(super) asleep: serde_json::Value,
}

impl Measured {
    /// Returns the device memory that a sleep leaves in use beside the context.
    pub(super) fn above_context(&self) -> Bytes {
        self.asleep_bytes.saturating_sub(self.context_bytes)
    }
}

/// Returns the bytes that one process counts as done.
pub(super) fn planned(divide: u64, turns: u32) -> Bytes {
    let (kept, turns) = (Model::kept_bytes(divide).0, u64::from(turns));
    // The first sleep and wake; then per turn two sleeps, two wakes and a change, a sleep and a wake
    // at once, and a copy in each direction.
    Bytes(Model::bytes(divide).0 + kept * (2 + turns * (5 + 2 + 2)))
}

/// Measures in this process and writes lines for the parent.
pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    options.parent.map_or(Ok(()), end_with_parent)?;
    let device = devices::open(options.device.context("the parent names the device")?)?;
    let done = |bytes| page::print_json_line(&ChildLine::Done { bytes }).map(drop);
    let measured = measure(&device, options, &done)?;
    page::print_json_line(&ChildLine::Measured(Box::new(measured)))?;
    Ok(Ending::Proved)
}

fn measure(
    device: &Device,
    options: &Options,
    done: &dyn Fn(Bytes) -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    let (divide, turns) = (options.divide.unwrap_or(1), options.turns);
    let context = device.usage()?.in_use();
    let most = if options.ahead.is_some() { Bytes(u64::MAX) } else { Bytes::ZERO };
    let policy = Policy::default().packing(!options.no_packing).ahead_most(most);
    let pool = Pool::builder(device).policy(policy).build()?;
    let kind = if options.weights { Kind::Weights } else { Kind::Random };
    let mut model = Model::load(&pool, divide, kind)?;
    done(Model::bytes(divide))?;
    let ahead = options.ahead.map(|share| ahead::measure(&pool, share)).transpose()?;
    let kept = model.kept();
    // Never between a sleep and its wake: some wakes begin at once.
    let done_times = |count: u64| done(Bytes(kept.0 * count));
    let sleep = || timed(|| pool.sleep(Scope::Whole).map(drop));
    let wake = || timed(|| pool.wake(Scope::Whole).map(drop));
    let first_sleep = sleep()?;
    let asleep: PoolSnapshot = pool.snapshot();
    let asleep_bytes = device.usage()?.in_use();
    let rested_wake = || {
        thread::sleep(REST);
        wake()
    };
    let mut wakes = vec![rested_wake()?];
    let mut right = model.is_right()?;
    done_times(2)?;
    let (mut unchanged, mut changed, mut at_once) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns {
        unchanged.push(sleep()?);
        wakes.push(rested_wake()?);
        right &= model.is_right()?;
        done_times(2)?;
        model.change()?;
        changed.push(sleep()?);
        wakes.push(rested_wake()?);
        right &= model.is_right()?;
        done_times(3)?;
    }
    // Last of all: after such a wake a driver may still be clearing memory that was freed before, which
    // slows the next sleep. No other figure should include that.
    for _ in 0..turns {
        sleep()?;
        at_once.push(wake()?);
        right &= model.is_right()?;
        done_times(2)?;
    }
    right &= model.is_right_to_the_byte()?;
    let backup = pool.counts().host;
    pool.sleep(Scope::Whole)?;
    let (raw_out, raw_in) = raw_copies(device, kept, turns)?;
    done_times(2 * u64::from(turns))?;
    Ok(Measured {
        first_sleep_s: first_sleep,
        ahead,
        unchanged_sleep_s: unchanged,
        changed_sleep_s: changed,
        wake_s: wakes,
        wake_at_once_s: at_once,
        raw_out_s: raw_out,
        raw_in_s: raw_in,
        context_bytes: context,
        asleep_bytes,
        backup_bytes: backup,
        right,
        asleep: serde_json::to_value(asleep)?,
    })
}

// The speed of the link: one chunk, one stream, host memory that was prepared before.
fn raw_copies(device: &Device, size: Bytes, turns: u32) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let size = Bytes(size.0.next_multiple_of(device.info().page.0));
    let reservation = device.reserve(size)?;
    reservation.map(Bytes::ZERO, device.create(size)?).map_err(lowtide_device::Error::from)?;
    reservation.open(Bytes::ZERO, size)?;
    let (memory, stream) = (device.host_memory(size)?, device.stream()?);
    let (on_device, on_host) = ((&reservation, Bytes::ZERO), (&memory, Bytes::ZERO));
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        out.push(timed(|| {
            stream.copy_out(on_device, on_host, size)?;
            stream.synchronize()
        })?);
        back.push(timed(|| {
            stream.copy_in(on_host, on_device, size)?;
            stream.synchronize()
        })?);
    }
    Ok((out, back))
}

fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lowtide_device::HostOptions;

    use super::*;

    #[test]
    fn the_bytes_done_are_the_bytes_planned() {
        let (divide, turns) = (4096, 2);
        let options = |ahead, packing: bool| Options {
            device: None,
            processes: None,
            turns,
            divide: Some(divide),
            weights: packing,
            no_packing: !packing,
            ahead,
            parent: None,
            json: false,
        };
        let device = Device::host(HostOptions::default()).unwrap();
        for (ahead, packing) in [(None, false), (Some(100), false), (Some(50), true)] {
            let counted = Cell::new(Bytes::ZERO);
            let count = |bytes| {
                counted.set(counted.get() + bytes);
                Ok(())
            };
            let measured = measure(&device, &options(ahead, packing), &count).unwrap();
            assert!(measured.right && measured.ahead.is_some() == ahead.is_some());
            assert_eq!(counted.get(), planned(divide, turns));
        }
    }
}
