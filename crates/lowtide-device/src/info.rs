//! A device's description, and addresses of its memory.

use std::fmt;

use lowtide_types::{Bytes, DeviceId};
use serde::Serialize;

/// An address of device memory. On `host` it is an address of this process too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `offset` bytes further on.
    #[must_use]
    pub const fn plus(self, offset: Bytes) -> Address {
        Address(self.0 + offset.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// Pages of this machine.
    Host,
    /// A GPU behind the CUDA driver.
    Cuda,
    /// A device without memory that only counts.
    DryRun,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Host => "host",
            DeviceKind::Cuda => "cuda",
            DeviceKind::DryRun => "dry-run",
        })
    }
}

/// The description of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name by which lowtide knows the device.
    pub id: DeviceId,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The name that its maker gave it.
    pub name: String,
    /// The whole memory of the device.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// The page: the size of every chunk is a multiple of it.
    #[serde(rename = "page_bytes")]
    pub page: Bytes,
    /// The GPU's UUID, the same in every process and after a restart.
    pub uuid: Option<String>,
}
