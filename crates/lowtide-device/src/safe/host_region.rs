//! Pages of this process, made real by several threads and registered with a device part by part.
//!
//! The driver's own pinned allocation takes half a second per GiB. Anonymous huge pages, touched by
//! several threads and registered part by part as they become ready, take a twentieth of that.
#![allow(unsafe_code, reason = "maps, touches and registers host pages")]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::backend::Backend;
use crate::os::memory::{HUGE_PAGE, SMALL_PAGE, map_huge, unmap};
use crate::sync::lock;
use crate::{Bytes, Error, Result};

/// The size of a registration: small enough that preparing and registering overlap, large enough that
/// its fixed cost does not count. No copy crosses from one into the next.
pub(crate) const PART: Bytes = Bytes::mib(512);

/// Pages of this process, with the parts of them that are registered.
pub(crate) struct HostRegion {
    base: NonNull<u8>,
    size: Bytes,
    registered: Mutex<Vec<usize>>,
}

// SAFETY: plain pages; `HostMemory` orders who reads and writes them.
unsafe impl Send for HostRegion {}
// SAFETY: as above; the list of registered parts has its lock.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    /// Maps pages, which become real in [`HostRegion::prepare`].
    pub(crate) fn map(size: Bytes) -> Result<HostRegion> {
        let base = map_huge(size).map_err(Error::os("mapping host memory"))?;
        Ok(HostRegion { base, size, registered: Mutex::default() })
    }

    /// Returns the address at an offset inside the region.
    ///
    /// # Panics
    /// If the offset is past the end.
    pub(crate) fn at(&self, offset: Bytes) -> *mut u8 {
        assert!(offset <= self.size, "an offset inside the region");
        // SAFETY: inside the region, by the assertion.
        unsafe { self.base.as_ptr().add(offset.as_usize()) }
    }

    fn parts(&self) -> usize {
        self.size.0.div_ceil(PART.0) as usize
    }

    fn part(&self, index: usize) -> (*mut u8, Bytes) {
        let start = Bytes(index as u64 * PART.0);
        (self.at(start), PART.min(self.size - start))
    }

    /// Touches and registers every part, several at a time if there are several threads. After a
    /// failure [`HostRegion::give_back`] undoes what was done.
    pub(crate) fn prepare(&self, backend: &dyn Backend, threads: usize) -> Result<()> {
        let next = AtomicUsize::new(0);
        let slices = threads.div_ceil(self.parts());
        let work = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.parts() {
                    return Ok(());
                }
                let (at, size) = self.part(index);
                touch(at, size, slices);
                // SAFETY: our own pages, readable and writable, registered once.
                if let Err(error) = unsafe { backend.register(at, size) } {
                    next.store(self.parts(), Ordering::Relaxed); // the others need not go on
                    return Err(error);
                }
                self.registered().push(index);
            }
        };
        thread::scope(|scope| {
            // Where a thread cannot be had, the others do its share.
            let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let workers: Vec<_> = (1..threads.min(self.parts())).filter_map(start).collect();
            let own = work();
            workers.into_iter().fold(own, |outcome, worker| {
                outcome.and(worker.join().expect("preparing memory does not panic"))
            })
        })
    }

    fn registered(&self) -> MutexGuard<'_, Vec<usize>> {
        lock(&self.registered)
    }

    /// Takes the pages out and leaves an empty region behind.
    pub(crate) fn take(&mut self) -> HostRegion {
        let (base, size) = (NonNull::dangling(), Bytes::ZERO);
        std::mem::replace(self, HostRegion { base, size, registered: Mutex::default() })
    }

    /// Unregisters and unmaps the pages. May be called again after a failure: what was unregistered is
    /// no longer listed.
    pub(crate) fn give_back(&mut self, backend: &dyn Backend) -> Result<()> {
        while let Some(index) = { self.registered().last().copied() } {
            let (at, size) = self.part(index);
            // SAFETY: registered by `prepare`; its owner is gone, so no copy is in flight.
            match unsafe { backend.unregister(at, size) } {
                // With the context went the registration; the pages are this process's all the same.
                Err(error) if !error.is_context_lost() => return Err(error),
                _ => self.registered().pop(),
            };
        }
        unmap(self.base.as_ptr(), self.size);
        self.size = Bytes::ZERO;
        Ok(())
    }
}

// One write per small page: with huge pages that is one fault per 2 MiB, without them it still
// makes every page real. Measured faster than asking the kernel to populate.
fn touch(at: *mut u8, size: Bytes, slices: usize) {
    let slice = size.as_usize().div_ceil(slices).next_multiple_of(HUGE_PAGE.as_usize());
    let base = at.expose_provenance();
    thread::scope(|scope| {
        for start in (0..size.as_usize()).step_by(slice) {
            let end = size.as_usize().min(start + slice);
            let run = move || {
                for offset in (start..end).step_by(SMALL_PAGE) {
                    let page = ptr::with_exposed_provenance_mut::<u8>(base + offset);
                    // SAFETY: inside the fresh region, which nobody else has seen yet.
                    unsafe { page.write_volatile(0) };
                }
            };
            if slice >= size.as_usize() || thread::Builder::new().spawn_scoped(scope, run).is_err()
            {
                run();
            }
        }
    });
}
