//! What a device reports about its memory.

use std::fmt;

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
///
/// ```
/// use lowtide_types::{Bytes, Source, Usage};
///
/// let (total, free) = (Bytes::mib(128), Bytes::mib(116));
/// let usage = Usage { total, free, reserved: Bytes::ZERO, source: Source::Kernel };
/// assert_eq!(usage.in_use(), Bytes::mib(12));
/// assert_eq!(usage.to_string(), "12.0 MiB of 128.0 MiB in use, 116.0 MiB free");
/// ```
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

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in use, {} free", self.in_use(), self.total, self.free)?;
        if self.reserved > Bytes::ZERO {
            write!(f, ", {} reserved by the driver", self.reserved)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_keeps_for_itself_is_named() {
        let usage = Usage {
            total: Bytes::mib(128),
            free: Bytes::mib(100),
            reserved: Bytes::mib(16),
            source: Source::Nvml,
        };
        let text = "12.0 MiB of 128.0 MiB in use, 100.0 MiB free, 16.0 MiB reserved by the driver";
        assert_eq!(usage.to_string(), text);
    }
}
