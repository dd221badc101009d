//! `books`: a device that only keeps books.
//!
//! It has no memory at all: reservations are numbers, chunks are counted against a total, and each
//! call is charged what the driver of an H200 took for each handle (figures below). It lets allocation
//! traces larger than this machine be replayed, and says what they would cost. Copies, fills and
//! digests have nothing to work on and are refused.
#![allow(unsafe_code, reason = "fulfils `Backend`")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{Backend, BackendStream, Handle};
use crate::{Address, Bytes, Device, DeviceId, DeviceInfo, Error, Result, Source, Usage};

const PAGE: Bytes = Bytes::mib(2);

/// Microseconds at 2 MiB, 512 MiB and 4 GiB, for one handle: measured on an H200, driver 580.
struct Cost(f64, f64, f64);

const CREATE: Cost = Cost(14.5, 20.0, 83.0);
const MAP: Cost = Cost(4.1, 3.0, 5.0);
const OPEN: Cost = Cost(34.7, 52.0, 168.0);
const UNMAP: Cost = Cost(24.2, 26.0, 58.0);
const DESTROY: Cost = Cost(14.8, 275.0, 2219.0);

impl Cost {
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

/// What was asked of a `books` device.
#[derive(Debug, Default)]
pub struct Tally {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Tally {
    /// How many driver calls it would have been.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// What they would have taken, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn ms(&self) -> f64 {
        self.nanoseconds.load(Relaxed) as f64 / 1e6
    }

    #[expect(clippy::cast_sign_loss, reason = "no call takes less than no time")]
    fn charge(&self, calls: u64, cost: &Cost, size: Bytes) {
        self.calls.fetch_add(calls, Relaxed);
        self.nanoseconds.fetch_add((cost.us(size) * 1000.0) as u64, Relaxed);
    }
}

impl Device {
    /// A device of this size that only keeps books, and the tally of what it is asked.
    pub fn books(total: Bytes) -> (Device, Arc<Tally>) {
        let tally = Arc::new(Tally::default());
        let info = DeviceInfo {
            id: DeviceId::DryRun,
            kind: "books",
            name: "nothing but books".to_owned(),
            total,
            page: PAGE,
            uuid: None,
        };
        let books = Mutex::new(Books {
            next_address: 1 << 40,
            next_handle: 1,
            in_use: Bytes::ZERO,
            mapped: BTreeMap::new(),
        });
        (Device::new(BooksBackend { info, tally: Arc::clone(&tally), books }), tally)
    }
}

struct BooksBackend {
    info: DeviceInfo,
    tally: Arc<Tally>,
    books: Mutex<Books>,
}

struct Books {
    next_address: u64,
    next_handle: u64,
    in_use: Bytes,
    /// Sizes by address: opening costs for each handle, however many one call opens.
    mapped: BTreeMap<u64, Bytes>,
}

impl BooksBackend {
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nothing_here(what: &'static str) -> Error {
    Error::Unsupported { what, why: "a `books` device has no memory, only numbers".to_owned() }
}

// SAFETY: addresses are handed out once, and nothing can be read or written through them.
unsafe impl Backend for BooksBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn usage(&self) -> Result<Usage> {
        let (total, reserved) = (self.info.total, Bytes::ZERO);
        let free = total - self.books().in_use;
        Ok(Usage { total, free, reserved, source: Source::DryRun })
    }

    fn calls(&self) -> u64 {
        self.tally.calls()
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        let mut books = self.books();
        let at = books.next_address;
        books.next_address = at.checked_add(size.0).ok_or_else(|| Error::BadSize {
            device: DeviceId::DryRun,
            operation: "reserve",
            size,
            rule: "more than there are addresses".to_owned(),
        })?;
        Ok(Address(at))
    }

    unsafe fn release(&self, _at: Address, _size: Bytes) -> Result<()> {
        Ok(())
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let mut books = self.books();
        let (total, free) = (self.info.total, self.info.total - books.in_use);
        if size > free {
            return Err(Error::OutOfMemory {
                device: DeviceId::DryRun,
                requested: size,
                free,
                total,
            });
        }
        books.in_use += size;
        books.next_handle += 1;
        self.tally.charge(1, &CREATE, size);
        Ok(Handle(books.next_handle))
    }

    unsafe fn destroy(&self, _chunk: Handle, size: Bytes) -> Result<()> {
        let mut books = self.books();
        books.in_use = books.in_use - size;
        self.tally.charge(1, &DESTROY, size);
        Ok(())
    }

    unsafe fn map(&self, at: Address, _chunk: Handle, size: Bytes) -> Result<()> {
        self.books().mapped.insert(at.0, size);
        self.tally.charge(1, &MAP, size);
        Ok(())
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        self.tally.calls.fetch_add(1, Relaxed);
        for size in self.books().mapped.range(at.0..at.0 + size.0).map(|(_, size)| *size) {
            self.tally.charge(0, &OPEN, size);
        }
        Ok(())
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        self.tally.calls.fetch_add(1, Relaxed);
        let mut books = self.books();
        let gone: Vec<_> = books.mapped.range(at.0..at.0 + size.0).map(|(at, _)| *at).collect();
        for at in gone {
            let size = books.mapped.remove(&at).unwrap_or_default();
            self.tally.charge(0, &UNMAP, size);
        }
        Ok(())
    }

    unsafe fn register(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(nothing_here("registering host memory"))
    }

    unsafe fn unregister(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(nothing_here("unregistering host memory"))
    }

    fn stage(&self, _size: Bytes) -> Result<*mut u8> {
        Err(nothing_here("staging"))
    }

    unsafe fn unstage(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        Err(nothing_here("staging"))
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        Err(nothing_here("a stream"))
    }

    // Without streams there is no work to wait for.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cost_what_was_measured() {
        assert!((CREATE.us(Bytes::mib(2)) - 14.5).abs() < 0.01);
        assert!((DESTROY.us(Bytes::mib(512)) - 275.0).abs() < 0.01);
        assert!((DESTROY.us(Bytes::gib(4)) - 2219.0).abs() < 0.01);
        let (device, tally) = Device::books(Bytes::gib(100));
        let reservation = device.reserve(Bytes::gib(200)).unwrap();
        reservation.map(Bytes::ZERO, device.create(Bytes::mib(512)).unwrap()).unwrap();
        reservation.open(Bytes::ZERO, Bytes::mib(512)).unwrap();
        assert_eq!((tally.calls(), device.calls()), (3, 3));
        assert!((tally.ms() - 0.075).abs() < 0.001);
        assert!(device.create(Bytes::gib(100)).unwrap_err().is_out_of_memory());
        assert!(device.stream().is_err());
        device.synchronize().unwrap();
    }
}
