//! What a device reports about its memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The origin of a number of memory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The operating system's kernel (`host`).
    Kernel,
    /// NVML, which sees every process.
    Nvml,
    /// The CUDA driver, where there is no NVML.
    Driver,
    /// Our own counting: a dry run has no device to ask.
    DryRun,
}

/// A device's report of its memory, for all processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// The whole memory of the device.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// Memory that can still be allocated.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
    /// Memory that the driver keeps for itself and no process can have; part of `total - free`.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Bytes,
    /// The origin of these numbers.
    pub source: Source,
}

impl Usage {
    /// Returns what processes hold: `total - free`, less `reserved`.
    pub fn in_use(&self) -> Bytes {
        self.total.saturating_sub(self.free).saturating_sub(self.reserved)
    }
}
