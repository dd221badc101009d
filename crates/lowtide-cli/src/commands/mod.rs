//! The commands, each in a file of its own, each flag defined once.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod floor_child;
pub(crate) mod ps;
pub(crate) mod replay;

use std::fmt;

use clap::Subcommand;
use lowtide_device::DeviceId;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what this machine can do: devices, memory, driver, what works and what to do about the rest.
    Doctor(doctor::Options),
    /// Show who holds device memory, by process, adding up to the driver's own number.
    Ps(ps::Options),
    /// Show on this machine how memory comes back: five practices with real bytes, as people follow
    /// them today and with lowtide, proved by the device's own numbers.
    Demo(demo::Options),
    /// Replay an allocation trace and say how much memory the pool takes for it.
    Replay(replay::Options),
    /// Measure the pool on this machine: allocations, sleep and wake.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Hold a bare context so that its cost can be measured. `doctor` runs this.
    #[command(hide = true)]
    FloorChild {
        /// The device to open.
        device: DeviceId,
    },
}

/// Everything was done, and not all of it is proved: what is not.
#[derive(Debug)]
pub(crate) struct NotProved(pub(crate) String);

impl fmt::Display for NotProved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not proved: {}", self.0)
    }
}

impl std::error::Error for NotProved {}
