//! How large everything is: in units, so that the same acts play on a GPU and on a small machine.

use anyhow::Context;
use lowtide::{Bytes, Device, DeviceError};
use lowtide_device::headroom;

/// The models of a pipeline, in units. Their sum, which is what today's way takes, is the most that
/// any act has on the device.
pub(super) const MODELS: [(&str, u64); 4] =
    [("embedder", 6), ("reranker", 10), ("generator", 16), ("judge", 8)];
/// What an evaluation keeps while its tasks come and go, and the buffers of each task; the first
/// takes the most.
pub(super) const EVALUATED: u64 = 4;
pub(super) const TASKS: [(&str, [u64; 2]); 3] =
    [("video", [8, 6]), ("image", [4, 2]), ("audio", [5, 5])];
/// A runner's model, its cache, and the buffers of a wrapper that knows its place.
pub(super) const RUNNER: [u64; 3] = [8, 4, 1];
/// What goes idle: weights that are kept, a cache that may be lost.
pub(super) const IDLE: [u64; 2] = [12, 4];
/// What is updated, the requests' keys and values meanwhile, and the most that an update brings.
pub(super) const UPDATED: [u64; 3] = [4, 2, 2];

/// A unit, where there is room: models of 1.5 to 4 GiB on a GPU, of 96 to 256 MiB on `host`.
const UNIT_OF_A_GPU: Bytes = Bytes::mib(256);
const UNIT_OF_HOST: Bytes = Bytes::mib(16);
/// Beside what the acts hold, in units: nothing may fail because the last page is missing.
const SPARE: u64 = 2;
/// Host memory beside the backups: patterns, what is read back, the program itself.
const BESIDE: Bytes = Bytes::mib(96);

/// What everything is a multiple of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit(Bytes);

impl Unit {
    /// The largest that fits on this machine as a `host` device, its backups included.
    pub(super) fn on_host(divide: u64) -> anyhow::Result<Unit> {
        let fits = |unit: Unit| headroom::require(unit.budget() + BESIDE);
        Unit::largest(UNIT_OF_HOST, divide, fits)
    }

    /// The largest that fits on a GPU, with its backups on this machine.
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
                Err(error) => return Err(error).context("not even the smallest demo fits here"),
            }
        }
    }

    /// So many of them.
    pub(super) fn times(self, count: u64) -> Bytes {
        Bytes(self.0.0 * count)
    }

    /// What a device of its own needs for all acts, which play one after another.
    pub(super) fn budget(self) -> Bytes {
        self.times(MODELS.iter().map(|(_, units)| units).sum::<u64>() + SPARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_device::headroom::HostLimit;

    #[test]
    fn no_act_takes_more_than_the_models_together() {
        let most: u64 = MODELS.iter().map(|(_, units)| units).sum();
        let tasks = TASKS.iter().map(|(_, buffers)| EVALUATED + buffers.iter().sum::<u64>());
        let others = [&RUNNER[..], &IDLE, &UPDATED].map(|units| units.iter().sum::<u64>());
        assert_eq!(tasks.clone().max(), tasks.clone().next(), "the first takes the most");
        assert!(tasks.chain(others).all(|units| units <= most));
    }

    #[test]
    fn a_unit_is_halved_until_it_fits_and_a_machine_that_is_too_small_is_told() {
        let room = |most: Bytes| {
            move |unit: Unit| {
                let (requested, left, limit) = (unit.budget(), most, HostLimit::Machine);
                if requested <= most {
                    Ok(())
                } else {
                    Err(DeviceError::NoHostHeadroom { requested, left, limit })
                }
            }
        };
        let unit = |most| Unit::largest(UNIT_OF_A_GPU, 1, room(most)).map(|unit| unit.times(1));
        assert_eq!(unit(Bytes::gib(100)).unwrap(), UNIT_OF_A_GPU);
        assert_eq!(unit(Bytes::gib(10)).unwrap(), Bytes::mib(128));
        assert_eq!(unit(Bytes::mib(100)).unwrap(), Bytes::mib(2));
        let error = format!("{:#}", unit(Bytes::mib(50)).unwrap_err());
        assert!(error.contains("not even the smallest demo fits here"), "{error}");
        assert!(
            error.contains("not enough host memory: 84.0 MiB needed, 50.0 MiB left"),
            "{error}"
        );
        let divided = Unit::largest(UNIT_OF_HOST, 3, |_| Ok(())).unwrap();
        assert_eq!(divided.times(1), Bytes::mib(4));
    }
}
