//! What all scenarios share: the device, sizes that fit on it, and the question how much is in use.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lowtide::device::{Bytes, Device, DeviceId, Error as DeviceError, HostOptions};
use lowtide::pool::{Pool, Scope, Tag};
use lowtide::release::{Gauge, Releaser};
use lowtide_device::headroom;
use lowtide_device::survey::{Survey, survey};

use crate::arguments::devices;
use crate::commands::floor;
use crate::content::{Content, distinct_words};
use crate::text::progress::{self, Progress};

/// A unit where memory suffices: models of 1.5 to 4 GiB on a GPU, of 96 to 256 MiB on `host`.
const UNIT_OF_A_GPU: Bytes = Bytes::mib(256);
const UNIT_OF_HOST: Bytes = Bytes::mib(16);
/// The device memory that all scenarios need, one after another, in units: the sum of all models, and a
/// reserve.
pub(super) const UNITS: u64 = 40 + 2;
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
    /// The memory that others used when our context was new, where it counts.
    pub(super) others: Bytes,
    /// True if the driver reports the memory of this process. Otherwise the memory of all counts.
    pub(super) counts_own: bool,
    /// The memory that may be left over: nothing, except for the growth of a context.
    pub(super) slack: Bytes,
}

impl Setup {
    /// Opens the device and uses it once.
    pub(super) fn open(id: DeviceId, divide: u64, hold: Duration) -> anyhow::Result<Setup> {
        // The floor is measured before this process has a context of its own.
        let floor = if id == DeviceId::Host { Ok(Bytes::ZERO) } else { floor_of(id) };
        let floor = floor.map_err(|error| format!("{error:#}"));
        let device = devices::open(id)?;
        let (usage, counts_own) = (device.usage()?, device.own().is_some());
        // Host memory holds what is asleep, and on `host` everything.
        let (top, on_host, slack) = match id {
            DeviceId::Host => (UNIT_OF_HOST, UNITS, Bytes::ZERO),
            _ => (UNIT_OF_A_GPU, ASLEEP, GROWTH),
        };
        let unit = largest(top, divide, |unit| {
            let (requested, free, total) = (Bytes(unit.0 * UNITS), usage.free, usage.total);
            let error = DeviceError::OutOfMemory { device: id, requested, free, total };
            ensure!(requested <= free, error);
            Ok(headroom::require(Bytes(unit.0 * on_host) + BESIDE)?)
        })?;
        // `host` gives the demo no more than it says that it uses.
        let device = if id == DeviceId::Host {
            let budget = Some(Bytes(unit.0 * UNITS));
            Device::host(HostOptions { budget, ..HostOptions::default() })?
        } else {
            device
        };
        let mut content = content(&device)?;
        // A context grows when its first copies, digests and sleeps run. That belongs to no scenario.
        let pool = Pool::new(&device)?;
        let page = content.block(&pool, Tag::default(), device.info().page)?;
        pool.sleep(Scope::Whole)?;
        pool.wake(Scope::Whole)?;
        ensure!(content.is_right([&page])?, "a page changed on its way to the host and back");
        content.progress = Progress::of(Bytes::ZERO);
        let bare = if counts_own { Bytes::ZERO } else { usage.in_use() };
        let others = bare.saturating_sub(floor.clone().unwrap_or_default());
        Ok(Setup { device, unit, content, hold, floor, others, counts_own, slack })
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
}

/// Creates content that shows no progress.
pub(super) fn content(device: &Device) -> anyhow::Result<Content> {
    Content::new(device, Bytes::mib(2), Progress::hidden(), distinct_words)
}

// The largest unit that fits: the usual one, or halved until it does.
fn largest(
    top: Bytes,
    divide: u64,
    fits: impl Fn(Bytes) -> anyhow::Result<()>,
) -> anyhow::Result<Bytes> {
    let least = Bytes::mib(2);
    let rounded = |bytes: u64| Bytes(bytes / least.0 * least.0).max(least);
    let mut unit = rounded(top.0 / divide);
    while unit > least && fits(unit).is_err() {
        unit = rounded(unit.0 / 2);
    }
    fits(unit).context("not even the smallest demo fits").map(|()| unit)
}

// The memory of a bare context.
fn floor_of(id: DeviceId) -> anyhow::Result<Bytes> {
    let spinner = progress::spinner(format!("measuring the floor of {id}"));
    let Survey { devices, nvml, .. } = survey();
    let device = devices.iter().find(|device| device.info.id == id);
    // A device that is missing is reported when it is opened.
    let device = device.context("there is no such device");
    let found = device.and_then(|it| floor::of(it, &nvml.version.unwrap_or_default(), false));
    spinner.finish_and_clear();
    Ok(found?.floor.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_halved_until_it_fits_and_a_machine_that_is_too_small_is_reported() {
        let unit = |left: Bytes| {
            largest(UNIT_OF_A_GPU, 1, |unit| {
                ensure!(unit.0 * UNITS <= left.0, "{left} left");
                Ok(())
            })
        };
        assert_eq!(unit(Bytes::gib(100)).unwrap(), UNIT_OF_A_GPU);
        assert_eq!(unit(Bytes::gib(10)).unwrap(), Bytes::mib(128));
        assert_eq!(unit(Bytes::mib(100)).unwrap(), Bytes::mib(2));
        let error = format!("{:#}", unit(Bytes::mib(50)).unwrap_err());
        assert_eq!(error, "not even the smallest demo fits: 50.0 MiB left");
        assert_eq!(largest(UNIT_OF_HOST, 3, |_| Ok(())).unwrap(), Bytes::mib(4));
    }
}
