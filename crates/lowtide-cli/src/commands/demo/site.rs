//! Where the acts play: the device, how large things are on it, and who is asked what is in use.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use lowtide::{Bytes, Device, DeviceId, Gauge, HostOptions, Pool, Releaser, Scope, Tag, Target};
use lowtide_device::survey::{Survey, survey};

use super::content::Content;
use super::sizes::Unit;
use crate::floor;

/// Between two looks that have to agree, and how long they may not.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(2);
/// What a context of CUDA may grow by when it is used, and keep.
const GROWTH: Bytes = Bytes::mib(8);

pub(super) struct Site {
    pub(super) device: Device,
    pub(super) unit: Unit,
    pub(super) content: Content,
    pub(super) hold: Duration,
    pub(super) floor: Floor,
    /// Whether the driver tells what this process holds; everybody's number is taken otherwise.
    pub(super) counts_own: bool,
    bar: ProgressBar,
}

/// What a bare context costs, and what was in use before there was ours.
#[derive(Default)]
pub(super) struct Floor {
    pub(super) bytes: Option<Bytes>,
    beside: Bytes,
    /// Why it is not known.
    pub(super) reason: Option<String>,
}

impl Site {
    pub(super) fn open(
        id: DeviceId,
        divide: u64,
        hold: Duration,
        bar: ProgressBar,
    ) -> anyhow::Result<Site> {
        let (device, unit, floor) = if id == DeviceId::Host {
            let unit = Unit::on_host(divide)?;
            let options = HostOptions { budget: Some(unit.budget()), ..HostOptions::default() };
            (Device::host(options)?, unit, Floor { bytes: Some(Bytes::ZERO), ..Floor::default() })
        } else {
            // Whoever has a context cannot measure what one costs: before ours is made.
            bar.set_message(format!("measuring the floor of {id}"));
            let floor = floor_of(id);
            let device = Device::open(id)?;
            let unit = Unit::on(&device, divide)?;
            (device, unit, floor)
        };
        let content = Content::new(&device)?;
        warm_up(&device, &content)?;
        let counts_own = device.own().is_some();
        Ok(Site { device, unit, content, hold, floor, counts_own, bar })
    }

    /// What the device says is in use: by this process, or by everybody where that is not told.
    pub(super) fn in_use(&self) -> anyhow::Result<Bytes> {
        if !self.counts_own {
            return Ok(self.device.usage()?.in_use());
        }
        self.device.own().context("the driver no longer tells what this process holds")
    }

    /// The same once two looks agree: a driver may still be at what was just freed.
    pub(super) fn settled(&self) -> anyhow::Result<Bytes> {
        let (began, mut last) = (Instant::now(), self.in_use()?);
        loop {
            thread::sleep(BETWEEN_LOOKS);
            let next = self.in_use()?;
            if next == last || began.elapsed() > PATIENCE {
                return Ok(next);
            }
            last = next;
        }
    }

    /// What may be left over: nothing, but for what a context grows by.
    pub(super) fn slack(&self) -> Bytes {
        if self.device.info().id == DeviceId::Host { Bytes::ZERO } else { GROWTH }
    }

    /// Whether two numbers of the device are the same, as far as a context lets them be.
    pub(super) fn same(&self, one: Bytes, other: Bytes) -> bool {
        one.0.abs_diff(other.0) <= self.slack().0
    }

    /// The same for what so many blocks should take: each may take a page more.
    pub(super) fn same_in_blocks(&self, one: Bytes, other: Bytes, blocks: u64) -> bool {
        one.0.abs_diff(other.0) <= self.slack().0 + blocks * self.device.info().page.0
    }

    pub(super) fn pool(&self) -> anyhow::Result<Pool> {
        Ok(Pool::new(&self.device)?)
    }

    pub(super) fn releaser(&self, pool: &Pool) -> Releaser {
        let releaser = lowtide::releaser(&self.device);
        releaser.add_pool(pool);
        if let Some(floor) = self.floor.bytes {
            releaser.set_floor(floor);
        }
        releaser
    }

    /// Nothing but the bare context. Where only everybody's number is told, what others had before
    /// us is theirs.
    pub(super) fn floor_target(&self) -> Target {
        match self.floor.bytes {
            Some(floor) if !self.counts_own => Target::Under(self.floor.beside + floor + GROWTH),
            _ => Target::Floor,
        }
    }

    /// What idle memory may be at the most; `None` where no floor is known.
    pub(super) fn floor_most(&self) -> Option<Bytes> {
        let beside = if self.counts_own { Bytes::ZERO } else { self.floor.beside };
        Some(beside + self.floor.bytes? + self.slack())
    }

    /// Says what is being done.
    pub(super) fn say(&self, text: impl Into<std::borrow::Cow<'static, str>>) {
        self.bar.set_message(text);
    }
}

fn floor_of(id: DeviceId) -> Floor {
    let Survey { devices, cuda, nvml, .. } = survey();
    // A device that is not there is told by whoever opens it.
    let Some(device) = devices.iter().find(|device| device.info.id == id) else {
        return Floor::default();
    };
    let driver = nvml.version.or(cuda.version).unwrap_or_default();
    let beside = device.usage.map(|usage| usage.in_use()).unwrap_or_default();
    match floor::of(device, &driver, false) {
        Ok((floor, _)) => Floor { bytes: Some(floor.bytes), beside, reason: None },
        Err(error) => Floor { bytes: None, beside, reason: Some(format!("{error:#}")) },
    }
}

// A context grows when its first copies, digests and sleeps run. None of that belongs to an act.
fn warm_up(device: &Device, content: &Content) -> anyhow::Result<()> {
    let pool = Pool::new(device)?;
    let page = device.info().page;
    let loaded = content.load(&pool, Tag::default(), page, 1)?;
    pool.sleep(Scope::Whole)?;
    pool.wake(Scope::Whole)?;
    anyhow::ensure!(content.is_right(&pool, &loaded)?, "a page came back changed from the host");
    Ok(())
}
