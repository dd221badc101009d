//! What all scenarios share: the device, sizes that fit on it, and the question how much is in use.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide::device::{Bytes, Device, DeviceId, Error as DeviceError, HostOptions};
use lowtide::pool::{Pool, Scope, SleepPolicy, Tag};
use lowtide::release::{Gauge, Releaser};
use lowtide_device::headroom;
use lowtide_device::survey::{Survey, survey};

use crate::arguments::devices;
use crate::commands::floor;
use crate::content::{Content, Filled, distinct_words};
use crate::text::progress::{self, Progress};

/// A unit where memory suffices: models of 1.5 to 4 GiB on a GPU, of 96 to 256 MiB on `host`.
const UNIT_OF_A_GPU: Bytes = Bytes::mib(256);
const UNIT_OF_HOST: Bytes = Bytes::mib(16);
/// The device memory that all scenarios need, one after another, in units: the sum of all models, and a
/// reserve.
const UNITS: u64 = 40 + 2;
/// The most that a scenario has asleep, in units.
pub(super) const ASLEEP: u64 = 12;
/// The host memory needed beside backups: patterns, what is read back, the program itself.
const BESIDE: Bytes = Bytes::mib(96);
/// The time between two readings that have to agree, and the longest time to wait for that.
const BETWEEN_READINGS: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(2);
/// A CUDA context may grow by this when it is used, and does not shrink.
const GROWTH: Bytes = Bytes::mib(8);

/// The device and everything else that all scenarios share.
pub(super) struct Setup {
    pub(super) device: Device,
    /// The size of which all sizes are multiples.
    pub(super) unit: Bytes,
    pub(super) content: Content,
    pub(super) hold: Duration,
    /// The memory of a bare context, or the reason why it is not known.
    pub(super) floor: Result<Bytes, String>,
    /// The memory in use before our context was created.
    pub(super) others: Bytes,
    /// True if the driver reports the memory of this process. Otherwise the memory of all counts.
    pub(super) counts_own: bool,
    /// The memory that may be left over: nothing, except for the growth of a context.
    pub(super) slack: Bytes,
    /// True if memory over time is recorded.
    pub(super) takes_samples: bool,
}

impl Setup {
    /// Opens the device and uses it once.
    pub(super) fn open(
        id: DeviceId,
        divide: u64,
        hold: Duration,
        takes_samples: bool,
    ) -> anyhow::Result<Setup> {
        let (device, unit, floor, others, slack) = if id == DeviceId::Host {
            let fits = |unit| headroom::require(budget(unit) + BESIDE);
            let unit = largest(UNIT_OF_HOST, divide, fits)?;
            let options = HostOptions { budget: Some(budget(unit)), ..HostOptions::default() };
            (Device::host(options)?, unit, Ok(Bytes::ZERO), Bytes::ZERO, Bytes::ZERO)
        } else {
            // The floor is measured before this process has a context of its own.
            let (floor, others) = floor_of(id);
            let device = devices::open(id)?;
            let usage = device.usage()?;
            let fits = |unit: Bytes| {
                let (requested, free, total) = (budget(unit), usage.free, usage.total);
                if requested > free {
                    return Err(DeviceError::OutOfMemory { device: id, requested, free, total });
                }
                headroom::require(Bytes(unit.0 * ASLEEP) + BESIDE)
            };
            let unit = largest(UNIT_OF_A_GPU, divide, fits)?;
            (device, unit, floor, others, GROWTH)
        };
        let (mut content, counts_own) = (content(&device)?, device.own().is_some());
        warm_up(&device, &content)?;
        content.progress = Progress::of(Bytes::ZERO);
        Ok(Setup { device, unit, content, hold, floor, others, counts_own, slack, takes_samples })
    }

    /// Returns the size of so many units.
    pub(super) fn units(&self, count: u64) -> Bytes {
        Bytes(self.unit.0 * count)
    }

    /// Returns the device memory in use: by this process, or by all where the driver does not report
    /// the memory of each.
    pub(super) fn in_use(&self) -> anyhow::Result<Bytes> {
        if !self.counts_own {
            return Ok(self.device.usage()?.in_use());
        }
        self.device.own().context("the driver no longer reports the memory of this process")
    }

    /// Returns the same once two readings agree: a driver may still be freeing memory.
    pub(super) fn settled(&self) -> anyhow::Result<Bytes> {
        let (began, mut last) = (Instant::now(), self.in_use()?);
        loop {
            thread::sleep(BETWEEN_READINGS);
            let next = self.in_use()?;
            if next == last || began.elapsed() > PATIENCE {
                return Ok(next);
            }
            last = next;
        }
    }

    /// Returns whether two numbers of the device are the same, except for the growth of a context and a
    /// page for each of `blocks` blocks.
    pub(super) fn same(&self, one: Bytes, other: Bytes, blocks: u64) -> bool {
        one.0.abs_diff(other.0) <= self.slack.0 + blocks * self.device.info().page.0
    }

    /// Creates a pool on the device, and a releaser for it.
    pub(super) fn pool(&self) -> anyhow::Result<(Pool, Releaser)> {
        let (pool, releaser) = (Pool::new(&self.device)?, lowtide::releaser(&self.device));
        releaser.add_pool(&pool);
        self.floor.iter().for_each(|floor| releaser.set_floor(*floor));
        Ok((pool, releaser))
    }

    /// Loads weights that a sleep keeps and a cache that it discards, each in units and in blocks.
    pub(super) fn load_server(
        &self,
        pool: &Pool,
        [weights, cache]: [(u64, u64); 2],
    ) -> anyhow::Result<[Vec<Filled>; 2]> {
        let load = |name, policy, (units, blocks)| {
            self.content.blocks(pool, pool.tag(name, policy)?, self.units(units), blocks)
        };
        let weights = load("weights", SleepPolicy::Offload, weights)?;
        Ok([weights, load("cache", SleepPolicy::Discard, cache)?])
    }
}

/// Creates content that shows no progress.
pub(super) fn content(device: &Device) -> anyhow::Result<Content> {
    Content::new(device, Bytes::mib(2), Progress::hidden(), distinct_words)
}

/// Returns the device memory that all scenarios need, one after another.
pub(super) fn budget(unit: Bytes) -> Bytes {
    Bytes(unit.0 * UNITS)
}

// The largest unit that fits: the usual one, or halved until it does.
fn largest(
    top: Bytes,
    divide: u64,
    fits: impl Fn(Bytes) -> Result<(), DeviceError>,
) -> anyhow::Result<Bytes> {
    let least = Bytes::mib(2);
    let rounded = |bytes: u64| Bytes(bytes / least.0 * least.0).max(least);
    let mut unit = rounded(top.0 / divide);
    while unit > least && fits(unit).is_err() {
        unit = rounded(unit.0 / 2);
    }
    fits(unit).context("not even the smallest demo fits").map(|()| unit)
}

// The memory of a bare context, and the memory in use before ours was created.
fn floor_of(id: DeviceId) -> (Result<Bytes, String>, Bytes) {
    let spinner = progress::spinner(format!("measuring the floor of {id}"));
    let Survey { devices, nvml, .. } = survey();
    let device = devices.iter().find(|device| device.info.id == id);
    // A device that is missing is reported when it is opened.
    let found = device.context("there is no such device").and_then(|device| {
        floor::of(device, &nvml.version.unwrap_or_default(), false).map(|found| found.floor.bytes)
    });
    spinner.finish_and_clear();
    let usage = device.and_then(|device| device.usage);
    let others = usage.map(|usage| usage.in_use()).unwrap_or_default();
    (found.map_err(|error| format!("{error:#}")), others)
}

// A context grows when its first copies, digests and sleeps run. That belongs to no scenario.
fn warm_up(device: &Device, content: &Content) -> anyhow::Result<()> {
    let pool = Pool::new(device)?;
    let page = content.block(&pool, Tag::default(), device.info().page)?;
    pool.sleep(Scope::Whole)?;
    pool.wake(Scope::Whole)?;
    ensure!(content.is_right([&page])?, "a page changed on its way to the host and back");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_device::HostLimit;

    #[test]
    fn a_unit_is_halved_until_it_fits_and_a_machine_that_is_too_small_is_reported() {
        let unit = |left: Bytes| {
            largest(UNIT_OF_A_GPU, 1, |unit| {
                let (requested, limit, promised) = (budget(unit), HostLimit::Machine, Bytes::ZERO);
                let error = DeviceError::NoHostHeadroom { requested, left, limit, promised };
                if requested <= left { Ok(()) } else { Err(error) }
            })
        };
        assert_eq!(unit(Bytes::gib(100)).unwrap(), UNIT_OF_A_GPU);
        assert_eq!(unit(Bytes::gib(10)).unwrap(), Bytes::mib(128));
        assert_eq!(unit(Bytes::mib(100)).unwrap(), Bytes::mib(2));
        let needed = "not enough host memory: 84.0 MiB needed, 50.0 MiB left";
        let error = format!("{:#}", unit(Bytes::mib(50)).unwrap_err());
        assert!(error.contains(&format!("not even the smallest demo fits: {needed}")), "{error}");
        assert_eq!(largest(UNIT_OF_HOST, 3, |_| Ok(())).unwrap(), Bytes::mib(4));
    }
}
