//! Readings: the device's number of memory in use, beside the allocators' own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The numbers at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reading {
    /// Memory in use on the device by all processes, as the driver or the kernel reports it; `None`
    /// where it could not be asked.
    #[serde(rename = "driver_bytes")]
    pub driver: Option<Bytes>,
    /// Memory that is free on the device, from the same report.
    #[serde(rename = "driver_free_bytes")]
    pub free: Option<Bytes>,
    /// This process's share of the memory in use, where the driver reports it.
    #[serde(rename = "own_bytes")]
    pub own: Option<Bytes>,
    /// Memory in live blocks, by the allocators' account.
    #[serde(rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// Memory that the allocators took from the device.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Bytes,
}

impl Reading {
    /// Returns the number that a release is judged by: this process's share, or the whole device's
    /// where the share is not reported.
    pub fn in_use(&self) -> Option<Bytes> {
        self.own.or(self.driver)
    }

    /// Returns whether two readings agree about this process, within `noise`. The device's number
    /// counts only where the driver does not report processes apart.
    pub fn is_like(&self, other: &Reading, noise: Bytes) -> bool {
        let near = |one: Bytes, other: Bytes| one.0.abs_diff(other.0) <= noise.0;
        let alike = match ((self.own, other.own), (self.driver, other.driver)) {
            ((Some(one), Some(other)), _) | (_, (Some(one), Some(other))) => near(one, other),
            (_, (one, other)) => one == other,
        };
        alike && near(self.allocated, other.allocated) && near(self.reserved, other.reserved)
    }

    /// Returns by how many bytes the number has fallen since an earlier reading; negative where it
    /// has risen, `None` where one of the two is missing.
    pub fn freed_since(&self, earlier: &Reading) -> Option<i64> {
        // Only like with like: a share that was reported before and not after says nothing.
        let (before, after) = match (earlier.own, self.own) {
            (Some(before), Some(after)) => (before, after),
            _ => (earlier.driver?, self.driver?),
        };
        Some(before.0.cast_signed() - after.0.cast_signed())
    }
}

/// A flag beside a reading: had the number stopped moving?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Settling {
    /// The number stayed the same.
    #[default]
    Steady,
    /// The number was still falling: the driver is still freeing memory.
    Falling,
    /// The number was still moving up and down.
    Moving,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_like_is_held_against_like() {
        let reading = |mib| Reading { driver: Some(Bytes::mib(mib)), ..Reading::default() };
        let told = |own| Reading { own: Some(Bytes::mib(own)), ..reading(100) };
        assert_eq!(told(3).freed_since(&told(10)), Some(7 << 20));
        assert_eq!(told(10).freed_since(&told(3)), Some(-7 << 20));
        assert_eq!(reading(60).freed_since(&told(10)), Some(40 << 20), "the device's number");
        assert_eq!(Reading::default().freed_since(&told(10)), None);
    }
}
