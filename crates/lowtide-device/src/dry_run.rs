//! `dry-run`: a device that has no memory and only counts.
//!
//! Reservations are numbers, chunks are counted against a total, and each call is charged what the
//! driver of an H200 took for each handle (figures below). Allocation traces larger than this machine
//! can be replayed on it, and it tells what they would cost. Copies, fills and digests have nothing to
//! work on and are refused.
#![allow(unsafe_code, reason = "fulfils `Backend`")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use lowtide_types::{Bytes, DeviceId, Source, Usage};

use crate::backend::{Address, Backend, BackendStream, DeviceInfo, DeviceKind, Handle};
use crate::facts::SizeRule;
use crate::sync::lock;
use crate::{Error, Result};

const PAGE: Bytes = Bytes::mib(2);

/// Microseconds at 2 MiB, 512 MiB and 4 GiB, for one handle: measured on an H200, driver 580.
struct CallCost(f64, f64, f64);

const CREATE: CallCost = CallCost(14.5, 20.0, 83.0);
const MAP: CallCost = CallCost(4.1, 3.0, 5.0);
const OPEN: CallCost = CallCost(34.7, 52.0, 168.0);
const UNMAP: CallCost = CallCost(24.2, 26.0, 58.0);
const DESTROY: CallCost = CallCost(14.8, 275.0, 2219.0);

impl CallCost {
    // Straight lines between the measured sizes, and on beyond them.
    fn us(&self, size: Bytes) -> f64 {
        let mib = size.as_gib() * 1024.0;
        if mib <= 512.0 {
            self.0 + (self.1 - self.0) * ((mib - 2.0) / 510.0).max(0.0)
        } else {
            self.1 + (self.2 - self.1) * (mib - 512.0) / 3584.0
        }
    }
}

/// The cost of what was asked of a `dry-run` device, had it been a GPU.
#[derive(Debug, Default)]
pub struct DryRunCost {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
}

impl DryRunCost {
    /// Returns how many driver calls there would have been.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Returns how long they would have taken, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn ms(&self) -> f64 {
        self.nanoseconds.load(Relaxed) as f64 / 1e6
    }

    #[expect(clippy::cast_sign_loss, reason = "no call takes less than no time")]
    fn charge(&self, calls: u64, call: &CallCost, size: Bytes) {
        self.calls.fetch_add(calls, Relaxed);
        self.nanoseconds.fetch_add((call.us(size) * 1000.0) as u64, Relaxed);
    }
}

/// A device without memory.
pub(crate) struct DryRunBackend {
    info: DeviceInfo,
    cost: Arc<DryRunCost>,
    counts: Mutex<Counts>,
}

struct Counts {
    next_address: u64,
    next_handle: u64,
    in_use: Bytes,
    /// Sizes by address: opening costs for each handle, however many one call opens.
    mapped: BTreeMap<u64, Bytes>,
}

impl DryRunBackend {
    pub(crate) fn new(total: Bytes, cost: Arc<DryRunCost>) -> DryRunBackend {
        let info = DeviceInfo {
            id: DeviceId::DryRun,
            kind: DeviceKind::DryRun,
            name: "dry run (no memory, only counts)".to_owned(),
            total,
            page: PAGE,
            uuid: None,
        };
        let counts = Mutex::new(Counts {
            next_address: 1 << 40,
            next_handle: 1,
            in_use: Bytes::ZERO,
            mapped: BTreeMap::new(),
        });
        DryRunBackend { info, cost, counts }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

fn no_memory(operation: &'static str) -> Error {
    Error::DryRun { operation }
}

// SAFETY: addresses are handed out once, and nothing can be read or written through them.
unsafe impl Backend for DryRunBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn usage(&self) -> Result<Usage> {
        let (total, reserved) = (self.info.total, Bytes::ZERO);
        let free = total - self.counts().in_use;
        Ok(Usage { total, free, reserved, source: Source::DryRun })
    }

    fn calls(&self) -> u64 {
        self.cost.calls()
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        let mut counts = self.counts();
        let at = counts.next_address;
        counts.next_address = at.checked_add(size.0).ok_or(Error::BadSize {
            device: DeviceId::DryRun,
            operation: "reserve",
            size,
            rule: SizeRule::AddressSpace,
        })?;
        Ok(Address(at))
    }

    unsafe fn release(&self, _at: Address, _size: Bytes) -> Result<()> {
        Ok(())
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let mut counts = self.counts();
        let (total, free) = (self.info.total, self.info.total - counts.in_use);
        if size > free {
            return Err(Error::OutOfMemory {
                device: DeviceId::DryRun,
                requested: size,
                free,
                total,
            });
        }
        counts.in_use += size;
        counts.next_handle += 1;
        self.cost.charge(1, &CREATE, size);
        Ok(Handle(counts.next_handle))
    }

    unsafe fn destroy(&self, _chunk: Handle, size: Bytes) -> Result<()> {
        let mut counts = self.counts();
        counts.in_use = counts.in_use - size;
        self.cost.charge(1, &DESTROY, size);
        Ok(())
    }

    unsafe fn map(&self, at: Address, _chunk: Handle, size: Bytes) -> Result<()> {
        self.counts().mapped.insert(at.0, size);
        self.cost.charge(1, &MAP, size);
        Ok(())
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        self.cost.calls.fetch_add(1, Relaxed);
        for size in self.counts().mapped.range(at.0..at.0 + size.0).map(|(_, size)| *size) {
            self.cost.charge(0, &OPEN, size);
        }
        Ok(())
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        self.cost.calls.fetch_add(1, Relaxed);
        let mut counts = self.counts();
        let gone: Vec<_> = counts.mapped.range(at.0..at.0 + size.0).map(|(at, _)| *at).collect();
        for at in gone {
            let size = counts.mapped.remove(&at).unwrap_or_default();
            self.cost.charge(0, &UNMAP, size);
        }
        Ok(())
    }

    unsafe fn register(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(no_memory("host_memory"))
    }

    unsafe fn unregister(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(no_memory("host_memory"))
    }

    fn stage(&self, _size: Bytes) -> Result<*mut u8> {
        Err(no_memory("digest"))
    }

    unsafe fn unstage(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(no_memory("digest"))
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        Err(no_memory("stream"))
    }

    // Without streams there is no work to wait for.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn calls_cost_what_was_measured() {
        assert!((CREATE.us(Bytes::mib(2)) - 14.5).abs() < 0.01);
        assert!((DESTROY.us(Bytes::mib(512)) - 275.0).abs() < 0.01);
        assert!((DESTROY.us(Bytes::gib(4)) - 2219.0).abs() < 0.01);
        let (device, cost) = Device::dry_run(Bytes::gib(100));
        let reservation = device.reserve(Bytes::gib(200)).unwrap();
        reservation.map(Bytes::ZERO, device.create(Bytes::mib(512)).unwrap()).unwrap();
        reservation.open(Bytes::ZERO, Bytes::mib(512)).unwrap();
        assert_eq!((cost.calls(), device.calls()), (3, 3));
        assert!((cost.ms() - 0.075).abs() < 0.001);
        assert!(device.create(Bytes::gib(100)).unwrap_err().is_out_of_memory());
        assert!(device.stream().is_err());
        device.synchronize().unwrap();
    }
}
