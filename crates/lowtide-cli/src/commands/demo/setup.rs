//! What all scenarios share: the device, sizes that fit on it, and the question how much is in use.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide::device::{Bytes, Device, DeviceId, Error as DeviceError, HostOptions};
use lowtide::pool::{Pool, Scope, Tag};
use lowtide::release::{Gauge, Releaser, Target};
use lowtide_device::headroom;
use lowtide_device::survey::{Survey, survey};

use super::content::Content;
use crate::arguments::devices;
use crate::commands::floor;
use crate::text::progress::{self, Progress};

/// A unit where memory suffices: models of 1.5 to 4 GiB on a GPU, of 96 to 256 MiB on `host`.
const UNIT_OF_A_GPU: Bytes = Bytes::mib(256);
const UNIT_OF_HOST: Bytes = Bytes::mib(16);
/// The device memory that all scenarios need, one after another, in units: the sum of all models, and a
/// reserve.
const UNITS: u64 = 40 + 2;
/// The most that a scenario has asleep, in units.
const ASLEEP: u64 = 12;
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
    pub(super) floor: Floor,
    /// True if the driver reports the memory of this process. Otherwise the memory of all counts.
    pub(super) counts_own: bool,
    /// True if memory over time is recorded.
    pub(super) takes_samples: bool,
}

/// The memory of a bare context, and the memory in use before ours was created.
#[derive(Default)]
pub(super) struct Floor {
    pub(super) bytes: Option<Bytes>,
    beside: Bytes,
    /// The reason why the floor is not known.
    pub(super) reason: String,
}

impl Setup {
    /// Opens the device and uses it once.
    pub(super) fn open(
        id: DeviceId,
        divide: u64,
        hold: Duration,
        takes_samples: bool,
    ) -> anyhow::Result<Setup> {
        let (device, unit, floor) = if id == DeviceId::Host {
            let fits = |unit| headroom::require(budget(unit) + BESIDE);
            let unit = largest(UNIT_OF_HOST, divide, fits)?;
            let options = HostOptions { budget: Some(budget(unit)), ..HostOptions::default() };
            (Device::host(options)?, unit, Floor { bytes: Some(Bytes::ZERO), ..Floor::default() })
        } else {
            // The floor is measured before this process has a context of its own.
            let spinner = progress::spinner(format!("measuring the floor of {id}"));
            let floor = floor_of(id);
            spinner.finish_and_clear();
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
            (device, unit, floor)
        };
        let mut content = Content::new(&device, Progress::hidden())?;
        warm_up(&device, &content)?;
        content.progress = Progress::of(Bytes::ZERO);
        let counts_own = device.own().is_some();
        Ok(Setup { device, unit, content, hold, floor, counts_own, takes_samples })
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

    /// Returns the memory that may be left over: nothing, except for the growth of a context.
    pub(super) fn slack(&self) -> Bytes {
        if self.device.id() == DeviceId::Host { Bytes::ZERO } else { GROWTH }
    }

    /// Returns whether two numbers of the device are the same, except for the growth of a context.
    pub(super) fn same(&self, one: Bytes, other: Bytes) -> bool {
        self.same_in_blocks(one, other, 0)
    }

    /// Returns the same for the memory of `blocks` blocks: each may use one page more.
    pub(super) fn same_in_blocks(&self, one: Bytes, other: Bytes, blocks: u64) -> bool {
        one.0.abs_diff(other.0) <= self.slack().0 + blocks * self.device.info().page.0
    }

    /// Creates a pool on the device, and a releaser for it.
    pub(super) fn pool(&self) -> anyhow::Result<(Pool, Releaser)> {
        let (pool, releaser) = (Pool::new(&self.device)?, lowtide::releaser(&self.device));
        releaser.add_pool(&pool);
        if let Some(floor) = self.floor.bytes {
            releaser.set_floor(floor);
        }
        Ok((pool, releaser))
    }

    /// Returns the target of an idle release: nothing but the bare context. Where only the memory of all
    /// processes is reported, what the others used before is theirs.
    pub(super) fn floor_target(&self) -> Target {
        match self.floor.bytes {
            Some(floor) if !self.counts_own => Target::Under(self.floor.beside + floor + GROWTH),
            _ => Target::Floor,
        }
    }

    /// Returns the most memory that may be in use while idle; `None` if no floor is known.
    pub(super) fn floor_most(&self) -> Option<Bytes> {
        let beside = if self.counts_own { Bytes::ZERO } else { self.floor.beside };
        Some(beside + self.floor.bytes? + self.slack())
    }

    /// Shows what is being done.
    pub(super) fn say(&self, text: String) {
        self.content.progress.say(text);
    }
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
    loop {
        match fits(unit) {
            Ok(()) => return Ok(unit),
            Err(_) if unit > least => unit = rounded(unit.0 / 2),
            Err(error) => return Err(error).context("not even the smallest demo fits"),
        }
    }
}

fn floor_of(id: DeviceId) -> Floor {
    let Survey { devices, nvml, .. } = survey();
    // A device that is missing is reported when it is opened.
    let Some(device) = devices.iter().find(|device| device.info.id == id) else {
        return Floor::default();
    };
    let beside = device.usage.map(|usage| usage.in_use()).unwrap_or_default();
    match floor::of(device, &nvml.version.unwrap_or_default(), false) {
        Ok(found) => Floor { bytes: Some(found.floor.bytes), beside, ..Floor::default() },
        Err(error) => Floor { bytes: None, beside, reason: format!("{error:#}") },
    }
}

// A context grows when its first copies, digests and sleeps run. That belongs to no scenario.
fn warm_up(device: &Device, content: &Content) -> anyhow::Result<()> {
    let pool = Pool::new(device)?;
    let loaded = content.load(&pool, Tag::default(), device.info().page, 1)?;
    pool.sleep(Scope::Whole)?;
    pool.wake(Scope::Whole)?;
    let is_right = content.is_right(&pool, &loaded)?;
    anyhow::ensure!(is_right, "a page changed on its way to the host and back");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::{between, idle, shutdown, stages, updates};
    use lowtide_device::HostLimit;

    #[test]
    fn no_scenario_uses_more_than_the_models_together() {
        let models: u64 = stages::MODELS.iter().map(|(_, units)| units).sum();
        let buffers = between::TASKS.map(|(_, units)| units.iter().sum::<u64>());
        assert_eq!(buffers.iter().max(), buffers.first(), "the first is the largest");
        let others = [&shutdown::RUNNER[..], &idle::SERVER, &updates::UPDATED];
        let others = others.map(|units| units.iter().sum::<u64>());
        assert!(others.into_iter().chain([between::MODEL + buffers[0]]).all(|it| it <= models));
        assert!(models <= UNITS && idle::SERVER[0] <= ASLEEP);
    }

    #[test]
    fn a_unit_is_halved_until_it_fits_and_a_machine_that_is_too_small_is_reported() {
        let room = |left: Bytes| {
            move |unit: Bytes| {
                let (requested, limit, promised) = (budget(unit), HostLimit::Machine, Bytes::ZERO);
                let error = DeviceError::NoHostHeadroom { requested, left, limit, promised };
                if requested <= left { Ok(()) } else { Err(error) }
            }
        };
        let unit = |most| largest(UNIT_OF_A_GPU, 1, room(most));
        assert_eq!(unit(Bytes::gib(100)).unwrap(), UNIT_OF_A_GPU);
        assert_eq!(unit(Bytes::gib(10)).unwrap(), Bytes::mib(128));
        assert_eq!(unit(Bytes::mib(100)).unwrap(), Bytes::mib(2));
        let error = format!("{:#}", unit(Bytes::mib(50)).unwrap_err());
        assert!(error.contains("not even the smallest demo fits"), "{error}");
        let needed = "not enough host memory: 84.0 MiB needed, 50.0 MiB left";
        assert!(error.contains(needed), "{error}");
        assert_eq!(largest(UNIT_OF_HOST, 3, |_| Ok(())).unwrap(), Bytes::mib(4));
    }
}
