//! `host`: real pages of this machine, as a device.
//!
//! It has a budget, reservations that use no memory, chunks that the kernel backs and takes back, and
//! streams that work on threads. The kernel reports how much is in use. So everything above this crate
//! runs, with real bytes, on a machine without a GPU.

#![allow(unsafe_code, reason = "passes the contract of `Backend` on to addresses and pages")]

mod page_locks;
mod pages;
mod stream;

use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::backend::{Address, Backend, BackendStream, DeviceInfo, DeviceKind, Handle};
use crate::facts::SizeRule;
use crate::os::headroom;
use crate::sync::lock;
use crate::{Bytes, DeviceId, Error, Result, Source, Usage};

use page_locks::PageLocks;
pub(crate) use pages::chunks_are_huge;
use pages::{PAGE, Pages};
use stream::{HostStream, Progress};

/// Options of a `host` device.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let options = HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() };
/// assert_eq!(Device::host(options)?.usage()?.total, Bytes::mib(64));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// The most memory that it may use; `None` is half of what the machine or its control group has.
    pub budget: Option<Bytes>,
    /// True to leave the pages small. Huge pages are faster to use and slower to create.
    pub small_pages: bool,
}

/// Describes a `host` device with default options.
pub(crate) fn default_info() -> DeviceInfo {
    info(default_budget())
}

fn info(total: Bytes) -> DeviceInfo {
    let name = "pages of this machine".to_owned();
    DeviceInfo { id: DeviceId::Host, kind: DeviceKind::Host, name, total, page: PAGE, uuid: None }
}

fn default_budget() -> Bytes {
    Bytes((headroom::total().0 / 2 / PAGE.0).max(1) * PAGE.0)
}

// Aligned for the digests and addresses that are staged in it.
fn staged_layout(size: Bytes) -> Result<Layout> {
    Layout::from_size_align(size.as_usize().max(1), 16).map_err(|_| {
        let rule = SizeRule::AddressSpace;
        Error::BadSize { device: DeviceId::Host, operation: "stage", size, rule }
    })
}

/// Pages of this machine as a device.
pub(crate) struct HostBackend {
    info: DeviceInfo,
    pages: Pages,
    /// The progress of each stream; that of streams that have ended is gone.
    streams: Mutex<Vec<Weak<Progress>>>,
    /// Counts what would have been driver calls: everything but descriptions and readings.
    calls: Arc<AtomicU64>,
    page_locks: Arc<PageLocks>,
}

impl HostBackend {
    pub(crate) fn new(options: HostOptions) -> Result<HostBackend> {
        let budget = options.budget.unwrap_or_else(default_budget);
        let total = headroom::total();
        if budget == Bytes::ZERO || !budget.is_multiple_of(PAGE) || budget > total {
            let rule = SizeRule::Budget { page: PAGE, most: total };
            let operation = "budget";
            return Err(Error::BadSize { device: DeviceId::Host, operation, size: budget, rule });
        }
        let pages = Pages::new(budget, options.small_pages)?;
        let (streams, calls, page_locks) = (Mutex::default(), Arc::default(), Arc::default());
        Ok(HostBackend { info: info(budget), pages, streams, calls, page_locks })
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Weak<Progress>>> {
        lock(&self.streams)
    }

    fn count(&self) {
        self.calls.fetch_add(1, Relaxed);
    }
}

// SAFETY: addresses and chunks come from the kernel; staged memory has a digest's alignment.
unsafe impl Backend for HostBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn usage(&self) -> Result<Usage> {
        let total = self.info.total;
        let free = total.saturating_sub(self.pages.in_use()?);
        Ok(Usage { total, free, reserved: Bytes::ZERO, source: Source::Kernel })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        self.count();
        pages::reserve(size)
    }

    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()> {
        self.count();
        // SAFETY: the caller's promise, as `Backend` has it.
        unsafe { pages::release(at, size) }
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        self.count();
        if let Some(chunk) = self.pages.create(size)? {
            return Ok(chunk);
        }
        let Usage { free, total, .. } = self.usage()?;
        Err(Error::OutOfMemory { device: DeviceId::Host, requested: size, free, total })
    }

    unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()> {
        self.count();
        self.pages.destroy(chunk, size)
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        self.count();
        // SAFETY: the caller's promise, as `Backend` has it.
        unsafe { self.pages.map(at, chunk, size) }
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        self.count();
        // SAFETY: the caller's promise, as `Backend` has it.
        unsafe { pages::open(at, size) }
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        self.count();
        // SAFETY: the caller's promise, as `Backend` has it.
        unsafe { pages::unmap(at, size) }
    }

    // A copy within this machine needs no registration.
    unsafe fn register(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        self.count();
        Ok(())
    }

    unsafe fn unregister(&self, _at: *mut u8, _size: Bytes) -> Result<()> {
        self.count();
        Ok(())
    }

    fn stage(&self, size: Bytes) -> Result<*mut u8> {
        self.count();
        let layout = staged_layout(size)?;
        // SAFETY: the layout's size is not zero: no staging is empty.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        if at.is_null() {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(Error::Os { operation: "allocating memory for copies", source });
        }
        Ok(at)
    }

    unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()> {
        self.count();
        let layout = staged_layout(size)?;
        // SAFETY: allocated by `stage` with the same layout, by the contract of `Backend`.
        unsafe { std::alloc::dealloc(at, layout) };
        Ok(())
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        self.count();
        let stream = HostStream::new(&self.calls, &self.page_locks)?;
        let mut streams = self.streams();
        streams.retain(|ended| ended.strong_count() > 0);
        streams.push(stream.progress());
        Ok(Box::new(stream))
    }

    fn synchronize(&self) -> Result<()> {
        self.count();
        let streams: Vec<_> = self.streams().iter().filter_map(Weak::upgrade).collect();
        for stream in streams {
            stream.settle();
        }
        Ok(())
    }
}
