#![doc = include_str!("front_page.md")]

mod ahead;
mod background;
mod clock;
mod idle;

use std::sync::Arc;

pub use ahead::{AheadShare, AheadThread, BadShare};
pub use clock::SystemClock;
pub use idle::IdleThread;
pub use lowtide_types::printable;

use device::{Device, DeviceId};
use release::Releaser;

/// Devices: memory that lowtide manages, with the driver's or the kernel's own numbers.
pub mod device {
    pub use lowtide_device::{
        Address, Device, DeviceInfo, Error, HostMemory, HostOptions, Result, Stream, known_devices,
    };
    pub use lowtide_types::{Bytes, DeviceId, ParseBytesError, Source, Usage, signed};
}

/// Allocation: blocks of device memory that can sleep and wake under the same addresses.
pub mod pool {
    pub use lowtide_pool::*;
}

/// Releases: ways to free memory, and receipts that say what came of it.
pub mod release {
    pub use lowtide_release::*;
}

/// Every type that the front page names, except the errors of devices and pools, which are
/// [`device::Error`] and [`pool::Error`]: `use lowtide::prelude::*;`.
pub mod prelude {
    pub use lowtide_device::{Device, HostOptions};
    pub use lowtide_pool::{Block, Policy, Pool, Scope, SleepPolicy, SleepReport, Tag, WakeReport};
    pub use lowtide_release::{
        Busy, Claim, Gate, Holder, Idle, IdleOptions, Idling, Ladder, Ledger, LedgerKind,
        LedgerLine, Lent, Mode, Owned, Owners, Pass, Paused, Pauses, Plan, Reading, Receipt,
        Releaser, Request, RestoreError, Resume, Resumed, Rung, RungReceipt, Stage, StageError,
        StageReport, Stages, StagesReport, Step, Target, Trend, Verdict, WhenBusy, Working,
    };
    pub use lowtide_types::{Bytes, DeviceId, Usage};

    pub use crate::{AheadThread, IdleThread, SystemClock, best_device, releaser};
}

/// Opens the first GPU of this machine, or `host` if there is none.
///
/// # Errors
/// If that GPU cannot be used.
pub fn best_device() -> device::Result<Device> {
    let gpu = device::known_devices().into_iter().find(|id| *id != DeviceId::Host);
    Device::open(gpu.unwrap_or(DeviceId::Host))
}

/// Creates a releaser for a device, on the machine's clock, with the floor that `lowtide doctor`
/// measured.
pub fn releaser(device: &Device) -> Releaser {
    let releaser = Releaser::new(device, Arc::new(SystemClock::default()));
    if let Some(floor) = lowtide_release::floor::of(device.info()) {
        releaser.set_floor(floor);
    }
    releaser
}
