//! The sizes of all scenarios, in units: the same scenarios run on a large GPU and on a small machine.

use anyhow::Context;
use lowtide::device::{Bytes, Device, Error as DeviceError};
use lowtide_device::headroom;

/// The models of a pipeline, in units. Their sum, which the usual way uses, is the most memory that any
/// scenario uses.
pub(super) const MODELS: [(&str, u64); 4] =
    [("embedder", 6), ("reranker", 10), ("generator", 16), ("judge", 8)];
/// The model of an evaluation, and the buffers of each of its tasks; those of the first are the
/// largest.
pub(super) const EVALUATED: u64 = 4;
pub(super) const TASKS: [(&str, [u64; 2]); 3] =
    [("video", [8, 6]), ("image", [4, 2]), ("audio", [5, 5])];
/// A runner's model, its cache, and the buffers of a registered wrapper.
pub(super) const RUNNER: [u64; 3] = [8, 4, 1];
/// The memory of an idle server: weights that are kept and a cache that is discarded.
pub(super) const IDLE: [u64; 2] = [12, 4];
/// The weights that are updated, the keys and values of requests, and the largest update.
pub(super) const UPDATED: [u64; 3] = [4, 2, 2];

/// A unit where memory suffices: models of 1.5 to 4 GiB on a GPU, of 96 to 256 MiB on `host`.
const UNIT_OF_A_GPU: Bytes = Bytes::mib(256);
const UNIT_OF_HOST: Bytes = Bytes::mib(16);
/// A reserve beside the memory of the scenarios, in units.
const SPARE: u64 = 2;
/// The host memory needed beside backups: patterns, what is read back, the program itself.
const BESIDE: Bytes = Bytes::mib(96);

/// The size of which all sizes are multiples.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit(Bytes);

impl Unit {
    /// Returns the largest unit that fits on this machine as a `host` device, with its backups.
    pub(super) fn on_host(divide: u64) -> anyhow::Result<Unit> {
        let fits = |unit: Unit| headroom::require(unit.budget() + BESIDE);
        Unit::largest(UNIT_OF_HOST, divide, fits)
    }

    /// Returns the largest unit that fits on a GPU, with its backups on this machine.
    pub(super) fn on(device: &Device, divide: u64) -> anyhow::Result<Unit> {
        let usage = device.usage()?;
        let fits = |unit: Unit| {
            let requested = unit.budget();
            if requested > usage.free {
                let (device, free, total) = (device.info().id, usage.free, usage.total);
                return Err(DeviceError::OutOfMemory { device, requested, free, total });
            }
            headroom::require(unit.times(IDLE[0]) + BESIDE)
        };
        Unit::largest(UNIT_OF_A_GPU, divide, fits)
    }

    fn largest(
        top: Bytes,
        divide: u64,
        fits: impl Fn(Unit) -> Result<(), DeviceError>,
    ) -> anyhow::Result<Unit> {
        let least = Bytes::mib(2);
        let mut unit = Bytes(top.0 / divide / least.0 * least.0).max(least);
        loop {
            match fits(Unit(unit)) {
                Ok(()) => return Ok(Unit(unit)),
                Err(_) if unit > least => unit = Bytes(unit.0 / 2 / least.0 * least.0).max(least),
                Err(error) => return Err(error).context("not even the smallest demo fits"),
            }
        }
    }

    /// Returns the size of so many units.
    pub(super) fn times(self, count: u64) -> Bytes {
        Bytes(self.0.0 * count)
    }

    /// Returns the device memory that all scenarios need, one after another.
    pub(super) fn budget(self) -> Bytes {
        self.times(MODELS.iter().map(|(_, units)| units).sum::<u64>() + SPARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_device::HostLimit;

    #[test]
    fn no_scenario_uses_more_than_the_models_together() {
        let most: u64 = MODELS.iter().map(|(_, units)| units).sum();
        let tasks = TASKS.iter().map(|(_, buffers)| EVALUATED + buffers.iter().sum::<u64>());
        let others = [&RUNNER[..], &IDLE, &UPDATED].map(|units| units.iter().sum::<u64>());
        assert_eq!(tasks.clone().max(), tasks.clone().next(), "the first is the largest");
        assert!(tasks.chain(others).all(|units| units <= most));
    }

    #[test]
    fn a_unit_is_halved_until_it_fits_and_a_machine_that_is_too_small_is_reported() {
        let room = |most: Bytes| {
            move |unit: Unit| {
                let (requested, left, limit) = (unit.budget(), most, HostLimit::Machine);
                if requested <= most {
                    Ok(())
                } else {
                    Err(DeviceError::NoHostHeadroom {
                        requested,
                        left,
                        limit,
                        promised: Bytes::ZERO,
                    })
                }
            }
        };
        let unit = |most| Unit::largest(UNIT_OF_A_GPU, 1, room(most)).map(|unit| unit.times(1));
        assert_eq!(unit(Bytes::gib(100)).unwrap(), UNIT_OF_A_GPU);
        assert_eq!(unit(Bytes::gib(10)).unwrap(), Bytes::mib(128));
        assert_eq!(unit(Bytes::mib(100)).unwrap(), Bytes::mib(2));
        let error = format!("{:#}", unit(Bytes::mib(50)).unwrap_err());
        assert!(error.contains("not even the smallest demo fits"), "{error}");
        assert!(
            error.contains("not enough host memory: 84.0 MiB needed, 50.0 MiB left"),
            "{error}"
        );
        let divided = Unit::largest(UNIT_OF_HOST, 3, |_| Ok(())).unwrap();
        assert_eq!(divided.times(1), Bytes::mib(4));
    }
}
