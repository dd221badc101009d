//! Host memory for copies at full speed.
//!
//! The device and the threads of this machine never use it at the same time: a copy pins all of it, and
//! threads lock the pages that they read or write. It is left out of forks and core dumps: it holds
//! other people's weights.
#![allow(unsafe_code, reason = "lends host pages out by pointer")]

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;
use std::{ptr, slice, thread};

use lowtide_types::debug_as;

use crate::page::copying;

use crate::facts::{RangeProblem, SizeRule};
use crate::os::headroom;
use crate::os::headroom::HostGrant;
use crate::os::memory::HUGE_PAGE;
use crate::safe::host_region::{HostRegion, PART};
use crate::safe::shared::Shared;
use crate::sync::{lock, wait};
use crate::{Bytes, Error, Result};

const MOST_THREADS: usize = 16;

/// Returns how many threads speed up the preparation of one piece of host memory.
pub(crate) fn all_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS)
}

/// Host memory that is registered with a device. Dropping it gives it back to the machine.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(8)), ..HostOptions::default() })?;
/// let memory = device.host_memory(Bytes::mib(4))?;
/// memory.write(Bytes(100), b"weights")?;
/// let mut bytes = [0; 7];
/// memory.read(Bytes(100), &mut bytes)?;
/// assert_eq!(&bytes, b"weights");
/// # Ok(())
/// # }
/// ```
pub struct HostMemory {
    device: Arc<Shared>,
    region: HostRegion,
    size: Bytes,
    users: Mutex<Users>,
    changed: Condvar,
    /// A thread that has a page's lock reads or writes it alone.
    pages: Box<[Mutex<()>]>,
}

/// The users of the memory: the device or threads of this machine, never both.
#[derive(Default)]
struct Users {
    /// The number of copies in flight.
    copies: usize,
    /// The number of threads that read or write.
    threads: usize,
}

impl HostMemory {
    /// Allocates host memory and prepares it on this many threads, the calling one among them.
    /// Its memory comes out of the grant, or is granted now where that is too small. After a failure
    /// the grant is as it was.
    pub(crate) fn new(
        device: &Arc<Shared>,
        size: Bytes,
        threads: usize,
        grant: Option<&mut HostGrant>,
    ) -> Result<HostMemory> {
        if size == Bytes::ZERO {
            let (device, operation) = (device.id(), "host_memory");
            return Err(Error::BadSize { device, operation, size, rule: SizeRule::NotEmpty });
        }
        let mapped = Bytes(size.0.next_multiple_of(HUGE_PAGE.0));
        let Some(grant) = grant else {
            // Kept until the pages are there.
            let mut grant = headroom::grant(mapped)?;
            return HostMemory::new(device, size, threads, Some(&mut grant));
        };
        if let Some(missing) = mapped.0.checked_sub(grant.size().0).filter(|missing| *missing > 0) {
            grant.join(headroom::grant(Bytes(missing))?);
        }
        let used = grant.split(mapped);
        let made = HostMemory::prepared(device, size, mapped, threads);
        if made.is_err() {
            grant.join(used);
        }
        made
    }

    fn prepared(
        device: &Arc<Shared>,
        size: Bytes,
        mapped: Bytes,
        threads: usize,
    ) -> Result<HostMemory> {
        let region = HostRegion::map(mapped)?;
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

    /// Returns the device that the memory is registered with.
    pub(crate) fn device(&self) -> &Arc<Shared> {
        &self.device
    }

    /// Returns the size that was asked for.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Reads bytes. Threads may read and write different pages at once.
    ///
    /// # Errors
    /// [`Error::BadRange`] if the range ends past the end, or while a copy is in flight.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) -> Result<()> {
        let locked = self.lock("read", offset, into.len())?;
        // SAFETY: the range is inside the region, and the locks keep copies and other threads away.
        unsafe { ptr::copy_nonoverlapping(locked.at, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Reads bytes past the processor's caches: for large reads whose result is not used soon.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn read_streaming(&self, offset: Bytes, into: &mut [u8]) -> Result<()> {
        let locked = self.lock("read", offset, into.len())?;
        // SAFETY: as in `read`; nobody writes it while the pages are locked.
        let from = unsafe { slice::from_raw_parts(locked.at, into.len()) };
        copying::past_caches(from, into);
        Ok(())
    }

    /// Writes many bytes that the device reads next, as one of several threads that do.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn write_much(&self, offset: Bytes, from: &[u8]) -> Result<()> {
        let locked = self.lock("write", offset, from.len())?;
        // SAFETY: as in `read`; nobody else has it while the pages are locked.
        let into = unsafe { slice::from_raw_parts_mut(locked.at, from.len()) };
        copying::into_caches(from, into);
        Ok(())
    }

    /// Writes bytes. Threads may read and write different pages at once.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    pub fn write(&self, offset: Bytes, from: &[u8]) -> Result<()> {
        let locked = self.lock("write", offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), locked.at, from.len()) };
        Ok(())
    }

    fn lock(&self, operation: &'static str, offset: Bytes, length: usize) -> Result<Locked<'_>> {
        // A forked child does not have these pages.
        self.device.check_process()?;
        let size = Bytes(length as u64);
        let at = self.at(operation, offset, size)?;
        let mut users = self.users();
        if users.copies > 0 {
            return Err(self.bad_range(operation, offset, size, RangeProblem::InUse));
        }
        users.threads += 1;
        drop(users);
        let end = (offset + size).0.div_ceil(HUGE_PAGE.0);
        // In the order of addresses, so that two threads that want the same pages do not deadlock.
        let pages = self.pages[(offset.0 / HUGE_PAGE.0) as usize..end as usize].iter();
        let pages = pages.map(lock);
        Ok(Locked { memory: self, at, _pages: pages.collect() })
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        lock(&self.users)
    }

    fn at(&self, operation: &'static str, offset: Bytes, size: Bytes) -> Result<*mut u8> {
        if offset.0.checked_add(size.0).is_none_or(|end| end > self.size.0) {
            return Err(self.bad_range(operation, offset, size, RangeProblem::OutOfBounds));
        }
        Ok(self.region.at(offset))
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
        self.device.check_process()?;
        self.at(operation, offset, size)?;
        let mut users = self.users();
        while users.threads > 0 {
            users = wait(&self.changed, users);
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

debug_as!(HostMemory, |it| "HostMemory({} for {})", it.size, it.device.id());

/// Pages that one thread reads or writes.
struct Locked<'a> {
    memory: &'a HostMemory,
    at: *mut u8,
    _pages: Vec<MutexGuard<'a, ()>>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.memory.users().threads -= 1;
        self.memory.changed.notify_all();
    }
}

/// A part of a copy that lies within one registration.
pub(crate) struct HostPiece {
    /// The address of the host memory.
    pub(crate) at: *mut u8,
    /// The size of the part.
    pub(crate) size: Bytes,
    /// The bytes of the copy before this part.
    pub(crate) before: Bytes,
}

/// Host memory that a copy uses.
pub(crate) struct HostPin {
    memory: Arc<HostMemory>,
    is_held: bool,
}

impl HostPin {
    /// Cuts a range into pieces that lie within one registration each.
    pub(crate) fn pieces(&self, offset: Bytes, size: Bytes) -> Vec<HostPiece> {
        let (mut start, end) = (offset.0, offset.0 + size.0);
        let mut pieces = Vec::with_capacity(1);
        while start < end {
            let next = (start / PART.0 + 1) * PART.0;
            let size = Bytes(next.min(end) - start);
            let at = self.memory.region.at(Bytes(start));
            pieces.push(HostPiece { at, size, before: Bytes(start - offset.0) });
            start += size.0;
        }
        pieces
    }

    /// Lets the memory go, before the pin itself does. May be called twice.
    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.is_held) && self.memory.device.is_own() {
            self.memory.users().copies -= 1;
        }
    }
}

impl Drop for HostPin {
    fn drop(&mut self) {
        self.let_go();
    }
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
