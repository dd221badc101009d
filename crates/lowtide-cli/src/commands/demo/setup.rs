//! What all scenarios share: the device, the sizes on it, and the question how much is in use.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use lowtide::device::{Bytes, Device, DeviceId, HostOptions};
use lowtide::pool::{Pool, Scope, Tag};
use lowtide::release::{Gauge, Releaser, Target};
use lowtide_device::survey::{Survey, survey};

use super::content::{Content, Filled, Loaded};
use super::sizes::Unit;
use crate::arguments::devices;
use crate::commands::floor;
use crate::text::progress::{self, Progress};

/// The time between two readings that have to agree, and the longest time to wait for that.
const BETWEEN_READINGS: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(2);
/// A CUDA context may grow by this when it is used, and does not shrink.
const GROWTH: Bytes = Bytes::mib(8);

/// The device and everything else that all scenarios share.
pub(super) struct Setup {
    pub(super) device: Device,
    pub(super) unit: Unit,
    pub(super) content: Content,
    pub(super) hold: Duration,
    pub(super) floor: Floor,
    /// True if the driver reports the memory of this process. Otherwise the memory of all processes
    /// counts.
    pub(super) counts_own: bool,
    /// True if memory over time is recorded.
    pub(super) takes_samples: bool,
    pub(super) progress: Progress,
}

/// The memory of a bare context, and the memory in use before ours was created.
#[derive(Default)]
pub(super) struct Floor {
    pub(super) bytes: Option<Bytes>,
    beside: Bytes,
    /// The reason why the floor is not known.
    pub(super) reason: Option<String>,
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
            let unit = Unit::on_host(divide)?;
            let options = HostOptions { budget: Some(unit.budget()), ..HostOptions::default() };
            (Device::host(options)?, unit, Floor { bytes: Some(Bytes::ZERO), ..Floor::default() })
        } else {
            // The floor is measured before this process has a context of its own.
            let spinner = progress::spinner(format!("measuring the floor of {id}"));
            let floor = floor_of(id);
            spinner.finish_and_clear();
            let device = devices::open(id)?;
            let unit = Unit::on(&device, divide)?;
            (device, unit, floor)
        };
        let content = Content::new(&device)?;
        warm_up(&device, &content)?;
        let (counts_own, progress) = (device.own().is_some(), Progress::of(Bytes::ZERO));
        Ok(Setup { device, unit, content, hold, floor, counts_own, takes_samples, progress })
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
        if self.device.info().id == DeviceId::Host { Bytes::ZERO } else { GROWTH }
    }

    /// Returns whether two numbers of the device are the same, except for the growth of a context.
    pub(super) fn same(&self, one: Bytes, other: Bytes) -> bool {
        one.0.abs_diff(other.0) <= self.slack().0
    }

    /// Returns the same for the memory of `blocks` blocks: each may use one page more.
    pub(super) fn same_in_blocks(&self, one: Bytes, other: Bytes, blocks: u64) -> bool {
        one.0.abs_diff(other.0) <= self.slack().0 + blocks * self.device.info().page.0
    }

    /// Creates a pool on the device.
    pub(super) fn pool(&self) -> anyhow::Result<Pool> {
        Ok(Pool::new(&self.device)?)
    }

    /// Creates a releaser for a pool.
    pub(super) fn releaser(&self, pool: &Pool) -> Releaser {
        let releaser = lowtide::releaser(&self.device);
        releaser.add_pool(pool);
        if let Some(floor) = self.floor.bytes {
            releaser.set_floor(floor);
        }
        releaser
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
    pub(super) fn say(&self, text: impl Into<std::borrow::Cow<'static, str>>) {
        self.progress.say(text);
    }

    /// Fills a block with other bytes.
    pub(super) fn fill(&self, pool: &Pool, filled: &mut Filled) -> anyhow::Result<()> {
        self.content.fill(pool, filled)?;
        self.progress.add(filled.block.size());
        Ok(())
    }

    /// Allocates `size` in so many blocks, and fills them.
    pub(super) fn load(
        &self,
        pool: &Pool,
        tag: Tag,
        size: Bytes,
        blocks: u64,
    ) -> anyhow::Result<Loaded> {
        let loaded = self.content.load(pool, tag, size, blocks)?;
        self.progress.add(loaded.bytes());
        Ok(loaded)
    }

    /// Compares every byte of these blocks with what they were filled with.
    pub(super) fn is_right(&self, pool: &Pool, loaded: &Loaded) -> anyhow::Result<bool> {
        let is_right = self.content.is_right(pool, loaded)?;
        self.progress.add(loaded.bytes());
        Ok(is_right)
    }
}

fn floor_of(id: DeviceId) -> Floor {
    let Survey { devices, nvml, .. } = survey();
    // A device that is missing is reported when it is opened.
    let Some(device) = devices.iter().find(|device| device.info.id == id) else {
        return Floor::default();
    };
    let driver = nvml.version.unwrap_or_default();
    let beside = device.usage.map(|usage| usage.in_use()).unwrap_or_default();
    match floor::of(device, &driver, false) {
        Ok(known) => Floor { bytes: Some(known.floor.bytes), beside, reason: None },
        Err(error) => Floor { bytes: None, beside, reason: Some(format!("{error:#}")) },
    }
}

// A context grows when its first copies, digests and sleeps run. That belongs to no scenario.
fn warm_up(device: &Device, content: &Content) -> anyhow::Result<()> {
    let pool = Pool::new(device)?;
    let page = device.info().page;
    let loaded = content.load(&pool, Tag::default(), page, 1)?;
    pool.sleep(Scope::Whole)?;
    pool.wake(Scope::Whole)?;
    anyhow::ensure!(
        content.is_right(&pool, &loaded)?,
        "a page changed on its way to the host and back"
    );
    Ok(())
}
