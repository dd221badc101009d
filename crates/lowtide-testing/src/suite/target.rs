//! What a suite runs for.
#![allow(unsafe_code, reason = "sets environment variables before any thread is started")]

use std::fmt;

use lowtide_device::cuda::Driver;
use lowtide_device::{Bytes, Device, HostOptions, Result};

use crate::double::Double;

/// The kind of device that a suite runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Pages of this machine.
    Host,
    /// The driver double of this crate.
    Double,
    /// A real GPU of this machine.
    Cuda,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Host => "host",
            Target::Double => "double",
            Target::Cuda => "cuda",
        })
    }
}

impl Target {
    /// Opens a device of this kind.
    ///
    /// # Errors
    /// The device's error, if there is none.
    pub fn device(self) -> Result<Device> {
        match self {
            Target::Host => {
                Device::host(HostOptions { budget: Some(Bytes::gib(1)), ..HostOptions::default() })
            }
            Target::Double | Target::Cuda => Device::cuda(0),
        }
    }

    /// Sets the environment in which the driver is looked up. Called before any thread is started.
    pub(super) fn prepare(self) {
        if self == Target::Double {
            let path = Double::path();
            let small = "total=1GiB,context=64MiB,reserved=32MiB";
            for (name, value) in [
                ("LOWTIDE_CUDA_LIBRARY", path.as_os_str()),
                ("LOWTIDE_NVML_LIBRARY", path.as_os_str()),
                ("LOWTIDE_DOUBLE", small.as_ref()),
            ] {
                // SAFETY: the suite's main has started no thread yet.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }

    /// Returns why the suite cannot run here; `None` if it can.
    pub(super) fn missing(self) -> Option<String> {
        let shown = || Driver::load()?.device_count();
        match (self, shown()) {
            (Target::Cuda, Err(error)) => Some(error.to_string()),
            (Target::Cuda, Ok(0)) => Some("the driver shows no GPU".to_owned()),
            _ => None,
        }
    }
}
