//! Gauges: where the device's own numbers come from.
//!
//! Nothing counts as freed because a call returned. A number is read until it has settled: if it stays
//! the same, the memory is free; if it keeps falling, the driver is still freeing.

use std::time::Duration;

use lowtide_device::neighbours::{self, Neighbour};
use lowtide_device::{Bytes, Device, DeviceId, Usage, processes};
use lowtide_types::{Reading, Settling};

use crate::clock::Clock;

/// A source of the device's own numbers. A [`Device`] is one; a host language may bring another.
pub trait Gauge: Send + Sync {
    /// Returns the device that the numbers are about.
    fn id(&self) -> DeviceId;

    /// Returns the memory in use and free on the device.
    ///
    /// # Errors
    /// If the device cannot be asked.
    fn usage(&self) -> lowtide_device::Result<Usage>;

    /// Returns this process's share of the memory in use, where the device reports it.
    fn own(&self) -> Option<Bytes> {
        None
    }

    /// Waits for all work on the device.
    ///
    /// # Errors
    /// Those of the device.
    fn synchronize(&self) -> lowtide_device::Result<()>;

    /// Returns the memory of other processes, where the device reports it: a name and a size each.
    fn others(&self) -> Vec<(String, Bytes)> {
        Vec::new()
    }

    /// Returns the other processes on the device; none where they cannot be seen.
    fn neighbours(&self) -> Vec<Neighbour> {
        if !matches!(self.id(), DeviceId::Cuda(_)) {
            return Vec::new();
        }
        neighbours::of(std::process::id()).unwrap_or_else(|error| {
            tracing::debug!(%error, "releases do not give way to processes that start");
            Vec::new()
        })
    }

    /// Returns whether this process is off the device altogether. It has nothing to free there then, and
    /// a rung could bring it back.
    fn is_away(&self) -> bool {
        false
    }

    /// Returns by how much the numbers move while nothing happens. A difference of that size proves
    /// nothing. Drivers count exactly; the number that a kernel reports for a whole process moves.
    fn noise(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Returns the unit in which the device counts. An object that is smaller may be freed without a
    /// change of the number.
    fn grain(&self) -> Bytes {
        Bytes(1)
    }
}

impl Gauge for Device {
    fn id(&self) -> DeviceId {
        Device::id(self)
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        Device::usage(self)
    }

    fn own(&self) -> Option<Bytes> {
        match self.info().id {
            // Its budget is this process's own.
            DeviceId::Host | DeviceId::DryRun => {
                Device::usage(self).ok().map(|usage| usage.in_use())
            }
            DeviceId::Cuda(_) => {
                let all = processes::of(self).ok()?;
                let own = std::process::id();
                all.processes.iter().find(|process| process.pid == own)?.held
            }
            DeviceId::Named(_) => None,
        }
    }

    fn grain(&self) -> Bytes {
        self.info().page
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        Device::synchronize(self)
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        if !matches!(self.info().id, DeviceId::Cuda(_)) {
            return Vec::new();
        }
        let Ok(all) = processes::of(self) else { return Vec::new() };
        let own = std::process::id();
        let others = all.processes.iter().filter(|process| process.pid != own);
        others.filter_map(|holder| Some((format!("pid {}", holder.pid), holder.held?))).collect()
    }
}

/// Reads the device's numbers.
pub(crate) fn take_reading(gauge: Option<&dyn Gauge>) -> Reading {
    let usage = gauge.and_then(|gauge| gauge.usage().ok());
    Reading {
        driver: usage.map(|usage| usage.in_use()),
        free: usage.map(|usage| usage.free),
        own: gauge.and_then(Gauge::own),
        ..Reading::default()
    }
}

/// Equal readings in a row that make a plateau.
const PLATEAU: usize = 3;
/// The first pause between readings; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// A number that has not settled within this time will not settle soon.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads until the number has settled.
pub(crate) fn read_settled(
    clock: &dyn Clock,
    noise: Bytes,
    mut read: impl FnMut() -> Reading,
) -> (Reading, Settling) {
    let (began, mut pause) = (clock.now(), FIRST_PAUSE);
    let (mut last, mut equal, mut fell) = (read(), 1, false);
    while equal < PLATEAU {
        if clock.since(began) > PATIENCE || clock.is_interrupted() {
            return (last, if fell { Settling::Falling } else { Settling::Moving });
        }
        clock.pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        let next = read();
        if next.is_like(&last, noise) {
            equal += 1;
        } else {
            fell = next.in_use() < last.in_use();
            equal = 1;
        }
        last = next;
    }
    (last, Settling::Steady)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn reading(mib: u64) -> Reading {
        Reading { driver: Some(Bytes::mib(mib)), ..Reading::default() }
    }

    #[test]
    fn a_plateau_is_steady_and_a_decay_is_told() {
        let clock = ManualClock::default();
        let mut values = [9, 7, 5, 5, 5, 1].into_iter();
        let (last, settling) =
            read_settled(&clock, Bytes::ZERO, || reading(values.next().unwrap()));
        assert_eq!((last, settling), (reading(5), Settling::Steady));
        let mut falling = (0..100_000).rev();
        let (_, settling) = read_settled(&clock, Bytes::ZERO, || reading(falling.next().unwrap()));
        assert_eq!(settling, Settling::Falling);
        let mut moving = 0;
        let (_, settling) = read_settled(&clock, Bytes::ZERO, || {
            moving += 1;
            reading(moving)
        });
        assert_eq!(settling, Settling::Moving);
        let mut noisy = [9, 10, 9].into_iter();
        let (_, settling) = read_settled(&clock, Bytes::mib(1), || reading(noisy.next().unwrap()));
        assert_eq!(settling, Settling::Steady, "noise is not movement");
    }
}
