//! Host memory that copies run at full speed with.
//!
//! The driver's own pinned allocation takes half a second per GiB. Anonymous huge pages, touched
//! by several threads and registered part by part as they become ready, take a twentieth of that.
//! The memory is left out of forks and core dumps: it holds other people's weights.
#![allow(unsafe_code, reason = "maps, touches and registers host pages")]

use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::backend::Backend;
use crate::device::Inner;
use crate::host_pages::{HUGE_PAGE, map_huge, unmap_huge};
use crate::{Bytes, Error, RangeProblem, Result, copying, exit, headroom};

const SMALL_PAGE: usize = 4096;
/// A registration's size: small enough that preparing and registering overlap, large enough that
/// its fixed cost does not count. No copy crosses from one into the next.
const PART: Bytes = Bytes::mib(512);
const MOST_THREADS: usize = 16;

/// As many threads as help where one caller wants host memory.
pub(crate) fn all_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS)
}

/// Host memory known to a device. Dropping it gives it back to the machine.
pub struct HostMemory {
    device: Arc<Inner>,
    region: Region,
    size: Bytes,
    users: Mutex<Users>,
    changed: Condvar,
    /// Whoever has a page's lock reads or writes it alone.
    pages: Box<[Mutex<()>]>,
}

/// Who uses the memory: the device or this machine, never both.
#[derive(Default)]
struct Users {
    /// Copies in flight.
    copies: usize,
    /// Threads that read or write.
    threads: usize,
}

impl HostMemory {
    /// Prepared by so many threads, the calling one among them.
    pub(crate) fn new(device: &Arc<Inner>, size: Bytes, threads: usize) -> Result<HostMemory> {
        if size == Bytes::ZERO {
            let rule = "host memory has at least one byte".to_owned();
            return Err(Error::BadSize {
                device: device.id(),
                operation: "host_memory",
                size,
                rule,
            });
        }
        headroom::require(size)?;
        let mapped = Bytes(size.0.next_multiple_of(HUGE_PAGE.0));
        let region = Region::map(mapped)?;
        let memory = HostMemory {
            device: Arc::clone(device),
            region,
            size,
            users: Mutex::default(),
            changed: Condvar::new(),
            pages: (0..mapped.0 / HUGE_PAGE.0).map(|_| Mutex::default()).collect(),
        };
        let began = Instant::now();
        memory.region.prepare(device.backend.as_ref(), threads)?;
        tracing::debug!(device = %device.id(), %size, elapsed = ?began.elapsed(), "host memory is ready");
        Ok(memory)
    }

    pub(crate) fn device(&self) -> &Arc<Inner> {
        &self.device
    }

    /// How much it is.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Reads bytes. Threads may read and write different pages at once.
    ///
    /// # Errors
    /// [`Error::BadRange`] past the end, or while a copy is in flight.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) -> Result<()> {
        let turn = self.turn("read", offset, into.len())?;
        // SAFETY: the range is inside the region, and the turn keeps copies and other threads away.
        unsafe { ptr::copy_nonoverlapping(turn.at, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Reads past the processor's caches: for much that nobody will look at soon.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn read_streaming(&self, offset: Bytes, into: &mut [u8]) -> Result<()> {
        let turn = self.turn("read", offset, into.len())?;
        // SAFETY: as in `read`; nobody writes it while the turn lasts.
        let from = unsafe { slice::from_raw_parts(turn.at, into.len()) };
        copying::past_caches(from, into);
        Ok(())
    }

    /// Writes much that the device reads next, by one of several threads.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn write_much(&self, offset: Bytes, from: &[u8]) -> Result<()> {
        let turn = self.turn("write", offset, from.len())?;
        // SAFETY: as in `read`; nobody else has it while the turn lasts.
        let into = unsafe { slice::from_raw_parts_mut(turn.at, from.len()) };
        copying::into_caches(from, into);
        Ok(())
    }

    /// Writes bytes. Threads may read and write different pages at once.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn write(&self, offset: Bytes, from: &[u8]) -> Result<()> {
        let turn = self.turn("write", offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), turn.at, from.len()) };
        Ok(())
    }

    fn turn(&self, operation: &'static str, offset: Bytes, length: usize) -> Result<Turn<'_>> {
        // A forked child does not have these pages.
        exit::refuse_after_fork()?;
        let size = Bytes(length as u64);
        let at = self.at(operation, offset, size)?;
        let mut users = self.users();
        if users.copies > 0 {
            return Err(self.bad_range(operation, offset, size, RangeProblem::InUse));
        }
        users.threads += 1;
        drop(users);
        let end = (offset + size).0.div_ceil(HUGE_PAGE.0);
        // In the order of addresses, so that two who want the same pages do not wait for each other.
        let pages = self.pages[(offset.0 / HUGE_PAGE.0) as usize..end as usize].iter();
        let pages = pages.map(|page| page.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Turn { memory: self, at, _pages: pages.collect() })
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, operation: &'static str, offset: Bytes, size: Bytes) -> Result<*mut u8> {
        if offset.0.checked_add(size.0).is_none_or(|end| end > self.size.0) {
            return Err(self.bad_range(operation, offset, size, RangeProblem::OutOfBounds));
        }
        // SAFETY: `offset` is inside the region, as was just checked.
        Ok(unsafe { self.region.base.as_ptr().add(offset.as_usize()) })
    }

    fn bad_range(
        &self,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
        problem: RangeProblem,
    ) -> Error {
        Error::BadRange { device: self.device.id(), operation, offset, size, problem }
    }

    /// Keeps the memory alive and unread while a copy uses it.
    pub(crate) fn pin(
        self: &Arc<HostMemory>,
        operation: &'static str,
        offset: Bytes,
        size: Bytes,
    ) -> Result<HostPin> {
        self.at(operation, offset, size)?;
        let mut users = self.users();
        while users.threads > 0 {
            users = self.changed.wait(users).unwrap_or_else(PoisonError::into_inner);
        }
        users.copies += 1;
        Ok(HostPin { memory: Arc::clone(self), is_held: true })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let mut region = self.region.take();
        self.device.give_back("host memory", move |backend| region.give_back(backend));
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} for {})", self.size, self.device.id())
    }
}

/// A thread's turn at some pages.
struct Turn<'a> {
    memory: &'a HostMemory,
    at: *mut u8,
    _pages: Vec<MutexGuard<'a, ()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.memory.users().threads -= 1;
        self.memory.changed.notify_all();
    }
}

/// A copy's hold on host memory.
pub(crate) struct HostPin {
    memory: Arc<HostMemory>,
    is_held: bool,
}

impl HostPin {
    /// The pieces of a range that lie within one registration each: address, size, bytes before it.
    pub(crate) fn pieces(&self, offset: Bytes, size: Bytes) -> Vec<(*mut u8, Bytes, Bytes)> {
        let (mut at, end) = (offset.0, offset.0 + size.0);
        let mut pieces = Vec::with_capacity(1);
        while at < end {
            let next = (at / PART.0 + 1) * PART.0;
            let piece = Bytes(next.min(end) - at);
            // SAFETY: `at` is inside the region: the pin was given for this range.
            let pointer = unsafe { self.memory.region.base.as_ptr().add(Bytes(at).as_usize()) };
            pieces.push((pointer, piece, Bytes(at - offset.0)));
            at += piece.0;
        }
        pieces
    }
}

impl HostPin {
    /// Lets the memory go, before the pin itself does. May be called twice.
    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.is_held) {
            self.memory.users().copies -= 1;
        }
    }
}

impl Drop for HostPin {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Pages of this process, with the parts of them that are registered.
struct Region {
    base: NonNull<u8>,
    size: Bytes,
    registered: Mutex<Vec<usize>>,
}

// SAFETY: plain pages; `HostMemory` orders who reads and writes them.
unsafe impl Send for Region {}
// SAFETY: as above; the list of registered parts has its lock.
unsafe impl Sync for Region {}

impl Region {
    fn map(size: Bytes) -> Result<Region> {
        Ok(Region { base: map_huge(size)?, size, registered: Mutex::default() })
    }

    fn parts(&self) -> usize {
        self.size.0.div_ceil(PART.0) as usize
    }

    fn part(&self, index: usize) -> (*mut u8, Bytes) {
        let start = index as u64 * PART.0;
        // SAFETY: a part begins inside the region.
        let at = unsafe { self.base.as_ptr().add(Bytes(start).as_usize()) };
        (at, Bytes(PART.0.min(self.size.0 - start)))
    }

    /// Touches and registers every part, several at a time where there are several threads. On
    /// failure nothing stays registered that the drop would not undo.
    fn prepare(&self, backend: &dyn Backend, threads: usize) -> Result<()> {
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
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region, leaving an empty one behind.
    fn take(&mut self) -> Region {
        let empty =
            Region { base: NonNull::dangling(), size: Bytes::ZERO, registered: Mutex::default() };
        std::mem::replace(self, empty)
    }

    // May be called again after a failure: what was unregistered is no longer listed.
    fn give_back(&mut self, backend: &dyn Backend) -> Result<()> {
        while let Some(index) = { self.registered().last().copied() } {
            let (at, size) = self.part(index);
            // SAFETY: registered by `prepare`; its owner is gone, so no copy is in flight.
            match unsafe { backend.unregister(at, size) } {
                // With the context went the registration; the pages are this process's all the same.
                Err(error) if !error.is_context_lost() => return Err(error),
                _ => self.registered().pop(),
            };
        }
        unmap_huge(self.base, self.size);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, HostOptions};

    // Pages that this thread has made real, as the kernel counts.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        after_name.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_prepared_here_is_touched_by_this_thread() {
        let size = Bytes::mib(128);
        let device =
            Device::host(HostOptions { budget: Some(HUGE_PAGE), small_pages: true }).unwrap();
        let before = faults();
        let _memory = device.host_memory_here(size).unwrap();
        assert!(faults() - before >= size.0 / HUGE_PAGE.0, "others touched some of it");
    }
}
