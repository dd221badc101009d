//! Bytes by device.

use std::collections::BTreeMap;

use lowtide_proto::helper::DeviceBytes;
use lowtide_types::Bytes;

/// Bytes on each device; negative where more is promised than there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Amounts(BTreeMap<String, i64>);

impl Amounts {
    /// Collects amounts. Devices that are named twice are added up.
    pub(super) fn of<'a>(all: impl IntoIterator<Item = (&'a str, Bytes)>) -> Amounts {
        let mut sum = Amounts::default();
        for (uuid, bytes) in all {
            sum.put(uuid, sum.at(uuid).saturating_add(signed(bytes)));
        }
        sum
    }

    /// Adds amounts up.
    pub(super) fn sum(all: impl IntoIterator<Item = Amounts>) -> Amounts {
        let mut sum = Amounts::default();
        for one in all {
            sum.add(&one);
        }
        sum
    }

    /// Returns the amount on a device.
    pub(super) fn at(&self, uuid: &str) -> i64 {
        self.0.get(uuid).copied().unwrap_or(0)
    }

    /// Sets the amount on a device.
    pub(super) fn put(&mut self, uuid: &str, bytes: i64) {
        self.0.insert(uuid.to_owned(), bytes);
    }

    /// Adds other amounts to these.
    pub(super) fn add(&mut self, other: &Amounts) {
        for (uuid, bytes) in &other.0 {
            *self.0.entry(uuid.clone()).or_default() += bytes;
        }
    }

    /// Returns these amounts minus others.
    pub(super) fn minus(&self, other: &Amounts) -> Amounts {
        let mut rest = self.clone();
        for (uuid, bytes) in &other.0 {
            *rest.0.entry(uuid.clone()).or_default() -= bytes;
        }
        rest
    }

    /// Returns the amounts above zero.
    pub(super) fn positive(&self) -> Amounts {
        Amounts(
            self.0.iter().filter(|it| *it.1 > 0).map(|(uuid, it)| (uuid.clone(), *it)).collect(),
        )
    }

    /// Returns whether there is as much as is needed on each device where something is needed.
    pub(super) fn covers(&self, need: &Amounts) -> bool {
        need.0.iter().all(|(uuid, bytes)| *bytes <= 0 || self.at(uuid) >= *bytes)
    }

    /// Returns whether both have something on one device.
    pub(super) fn meets(&self, other: &Amounts) -> bool {
        self.0.iter().any(|(uuid, bytes)| *bytes > 0 && other.at(uuid) > 0)
    }

    /// Returns the devices and their amounts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(uuid, bytes)| (uuid.as_str(), *bytes))
    }

    /// Returns the sum over all devices.
    pub(super) fn total(&self) -> i64 {
        self.0.values().sum()
    }

    /// Returns the amounts for messages.
    pub(super) fn list(&self) -> Vec<DeviceBytes> {
        let one = |(uuid, bytes): (&str, i64)| DeviceBytes {
            uuid: uuid.to_owned(),
            bytes: unsigned(bytes),
        };
        self.iter().map(one).collect()
    }
}

impl From<&[DeviceBytes]> for Amounts {
    fn from(all: &[DeviceBytes]) -> Amounts {
        Amounts::of(all.iter().map(|one| (one.uuid.as_str(), one.bytes)))
    }
}

/// Returns bytes as a number that can be negative. What does not fit is more than any device has.
pub(super) fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX / 4)
}

/// Returns bytes, or zero for a negative number.
pub(super) fn unsigned(bytes: i64) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(0))
}
