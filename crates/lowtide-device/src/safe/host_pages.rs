//! Plain host memory in huge pages, for backups.
//!
//! It is not registered with any device: a registration costs the device 2 MiB of page tables for
//! every GiB (measured, whichever way host memory is pinned), for as long as it lasts. Copies go
//! through a little registered memory instead. Pages become real when they are first written, on as
//! many threads as write. The memory is left out of forks and core dumps: it holds other people's
//! weights.
#![allow(unsafe_code, reason = "maps pages and lends them out")]

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, MutexGuard};

use lowtide_types::debug_as;

use crate::os::exit;
use crate::os::headroom::{self, HostGrant};
use crate::os::memory::{HUGE_PAGE, SMALL_PAGE, map_huge, unmap};
use crate::os::process::Generation;
use crate::sync::lock;
use crate::{Bytes, Error, Result};

/// Host memory in huge pages, which any thread may write and read, a range at a time. Dropping it gives
/// it back to the machine.
///
/// ```
/// use lowtide_device::{Bytes, HostPages};
/// # fn main() -> lowtide_device::Result<()> {
/// let pages = HostPages::new(Bytes::mib(4))?;
/// pages.write(Bytes::mib(1), Bytes(3), |bytes| bytes.copy_from_slice(b"abc"))?;
/// assert_eq!(pages.read(Bytes::mib(1), Bytes(3), |bytes| bytes.to_vec())?, b"abc");
/// # Ok(())
/// # }
/// ```
pub struct HostPages {
    base: NonNull<u8>,
    made_in: Generation,
    /// A thread that has a page's lock has the page to itself. The value says whether the page was
    /// written and so takes memory.
    locks: Box<[Mutex<bool>]>,
    /// The memory of pages that were not written yet.
    grant: HostGrant,
}

// SAFETY: plain pages of this process; the locks order who reads and writes them.
unsafe impl Send for HostPages {}
// SAFETY: as above.
unsafe impl Sync for HostPages {}

impl HostPages {
    /// Maps whole huge pages, rounded up. A page takes memory when it is first written.
    ///
    /// # Errors
    /// [`Error::NoHostHeadroom`] if the machine or a control group around this process has less left;
    /// [`Error::Os`] if the kernel refuses.
    pub fn new(size: Bytes) -> Result<HostPages> {
        let pages = size.0.div_ceil(HUGE_PAGE.0).max(1);
        HostPages::granted(headroom::grant(Bytes(pages * HUGE_PAGE.0))?)
    }

    /// Maps whole huge pages, rounded up, for memory that was granted.
    ///
    /// # Errors
    /// [`Error::Os`] if the kernel refuses.
    pub fn granted(grant: HostGrant) -> Result<HostPages> {
        exit::watch(&exit::OF_DEVICES);
        let pages = grant.size().0.div_ceil(HUGE_PAGE.0).max(1);
        let base =
            map_huge(Bytes(pages * HUGE_PAGE.0)).map_err(Error::os("mapping host memory"))?;
        let locks = (0..pages).map(|_| Mutex::default()).collect();
        Ok(HostPages { base, made_in: Generation::current(), locks, grant })
    }

    /// Returns the size, in whole huge pages.
    pub fn size(&self) -> Bytes {
        Bytes(self.locks.len() as u64 * HUGE_PAGE.0)
    }

    /// Calls `with` with a range to write to.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, which does not have these pages.
    ///
    /// # Panics
    /// If the range ends past the end of the pages.
    pub fn write<T>(
        &self,
        offset: Bytes,
        size: Bytes,
        with: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let (at, mut held) = self.lock(offset, size)?;
        let first = offset.0 / HUGE_PAGE.0;
        for (page, _) in (first..).zip(&held).filter(|(_, written)| !***written) {
            let page = page * HUGE_PAGE.0..(page + 1) * HUGE_PAGE.0;
            if page.start < offset.0 || (offset + size).0 < page.end {
                self.touch(page);
            }
        }
        // SAFETY: inside the mapping, whose bytes are all initialised (the kernel gives zeros), and
        // nobody else has these pages while their locks are held.
        let outcome = with(unsafe { slice::from_raw_parts_mut(at, size.as_usize()) });
        let mut fresh = Bytes::ZERO;
        for written in held.iter_mut().filter(|written| !***written) {
            **written = true;
            fresh += HUGE_PAGE;
        }
        self.grant.shrink(fresh);
        Ok(outcome)
    }

    /// Gives back the memory that was granted for the page at `offset`, if the page was never written.
    /// Returns whether it was so. The page must not be written afterwards: nothing is granted for it.
    ///
    /// # Panics
    /// If the offset is past the end of the pages.
    pub fn give_up(&self, offset: Bytes) -> bool {
        if !self.made_in.is_current() {
            return false;
        }
        let page = &self.locks[(offset.0 / HUGE_PAGE.0) as usize];
        let mut written = lock(page);
        if *written {
            return false;
        }
        *written = true;
        self.grant.shrink(HUGE_PAGE);
        true
    }

    // Makes all of a page resident. A caller that writes a part of it may get a small page only, and
    // the rest would take memory that was no longer granted.
    fn touch(&self, page: Range<u64>) {
        for offset in page.step_by(SMALL_PAGE) {
            // SAFETY: inside the mapping, by the caller, who has the page's lock.
            let at = unsafe { self.base.as_ptr().add(offset as usize) };
            // SAFETY: as above.
            let byte = unsafe { at.read_volatile() };
            // SAFETY: as above; the byte keeps its value.
            unsafe { at.write_volatile(byte) };
        }
    }

    /// Calls `with` with a range to read from.
    ///
    /// # Errors
    /// As [`HostPages::write`].
    ///
    /// # Panics
    /// If the range ends past the end of the pages.
    pub fn read<T>(&self, offset: Bytes, size: Bytes, with: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let (at, _held) = self.lock(offset, size)?;
        // SAFETY: as in `write`.
        Ok(with(unsafe { slice::from_raw_parts(at, size.as_usize()) }))
    }

    // In the order of addresses, so that two threads that want the same pages do not deadlock.
    fn lock(&self, offset: Bytes, size: Bytes) -> Result<(*mut u8, Vec<MutexGuard<'_, bool>>)> {
        self.made_in.check()?;
        let end = offset.0.checked_add(size.0).filter(|end| *end <= self.size().0);
        let end = end.expect("a range of these pages");
        let pages = (offset.0 / HUGE_PAGE.0) as usize..end.div_ceil(HUGE_PAGE.0) as usize;
        let held = self.locks[pages].iter();
        let held = held.map(lock).collect();
        // SAFETY: inside the mapping, by the check above.
        Ok((unsafe { self.base.as_ptr().add(offset.as_usize()) }, held))
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // A forked child does not have them, and may have something else there.
        if self.made_in.is_current() {
            unmap(self.base.as_ptr(), self.size());
        }
    }
}

debug_as!(HostPages, |it| "HostPages({})", it.size());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_pages_of_their_own_and_share_those_between() {
        let pages = HostPages::new(Bytes::mib(9)).unwrap();
        assert_eq!(pages.size(), Bytes::mib(10));
        std::thread::scope(|scope| {
            for turn in 0..4u8 {
                let pages = &pages;
                scope.spawn(move || {
                    let (at, size) = (Bytes::mib(u64::from(turn) * 2), Bytes::mib(2));
                    pages.write(at, size, |bytes| bytes.fill(turn + 1)).unwrap();
                    for _ in 0..50 {
                        pages.write(Bytes::mib(9), Bytes(1), |bytes| bytes[0] += 1).unwrap();
                    }
                });
            }
        });
        let byte = |offset| pages.read(offset, Bytes(1), |bytes| bytes[0]).unwrap();
        assert_eq!([1, 3, 5, 7, 9].map(|mib| byte(Bytes::mib(mib))), [1, 2, 3, 4, 200]);
    }

    #[test]
    #[should_panic(expected = "a range of these pages")]
    fn nobody_gets_what_is_not_there() {
        let pages = HostPages::new(Bytes::mib(2)).unwrap();
        drop(pages.read(Bytes::mib(1), Bytes::mib(2), |_| ()));
    }
}
