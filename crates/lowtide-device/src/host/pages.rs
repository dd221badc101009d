//! The pages of a `host` device: one sparse file of memory, extents of it as chunks.
//!
//! A chunk is an extent of an anonymous in-memory file. Creating it makes the kernel allocate the
//! pages at once; destroying it punches the extent out, and the pages are gone. Mapping is a shared
//! mapping of the extent over reserved addresses, so content moves between addresses without a copy.
//! The file's block count is the kernel's own number of what is in use. Offsets are never used twice:
//! a sparse file has enough of them.
#![allow(unsafe_code, reason = "makes the file and maps its extents")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use super::addresses::{self, PAGE, check, pointer};
use crate::backend::Handle;
use crate::os::headroom;
use crate::sync::lock;
use crate::{Address, Bytes, Error, Result};

const FILE_BYTES: i64 = 1 << 62;
const SLICE: Bytes = Bytes::mib(64);

pub(super) struct Pages {
    file: File,
    budget: Bytes,
    small: bool,
    /// The offset of the next extent. Locked while the kernel allocates its pages: two creations at
    /// once could each fit the budget and together exceed it.
    next: Mutex<u64>,
}

impl Pages {
    pub(super) fn new(budget: Bytes, small: bool) -> Result<Pages> {
        // SAFETY: a fresh descriptor, or -1; the name is a C string.
        let descriptor = unsafe { libc::memfd_create(c"lowtide-host".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(Error::os("making the file of a host device"));
        }
        // SAFETY: just made, and owned by nobody else.
        let file = unsafe { File::from_raw_fd(descriptor) };
        // SAFETY: sets the size of our own file; it stays empty.
        if unsafe { libc::ftruncate(file.as_raw_fd(), FILE_BYTES) } != 0 {
            return Err(Error::os("sizing the file of a host device"));
        }
        Ok(Pages { file, budget, small, next: Mutex::new(0) })
    }

    /// Asks the kernel how much this device uses.
    pub(super) fn in_use(&self) -> Result<Bytes> {
        let asked = self.file.metadata();
        let file =
            asked.map_err(|source| Error::Os { operation: "reading the memory in use", source })?;
        Ok(Bytes(file.blocks() * 512))
    }

    /// Creates a chunk. Returns `None` if the budget or the machine has too little memory left.
    pub(super) fn create(&self, size: Bytes) -> Result<Option<Handle>> {
        let mut next = lock(&self.next);
        if size > self.budget.saturating_sub(self.in_use()?) {
            return Ok(None);
        }
        // Past the machine's limits the kernel does not refuse: it kills. Kept until the pages are there.
        let _granted = headroom::grant(size)?;
        let start = *next;
        if !self.small {
            self.make_huge(start, size);
        }
        if let Err(error) = self.back(start, size) {
            self.punch(start, size)?;
            return match error.raw_os_error() {
                Some(libc::ENOMEM | libc::ENOSPC) => Ok(None),
                _ => Err(Error::Os { operation: "backing a chunk with pages", source: error }),
            };
        }
        *next = start + size.0;
        Ok(Some(Handle(start)))
    }

    pub(super) fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()> {
        self.punch(chunk.0, size)
    }

    pub(super) unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        // SAFETY: the caller gives reserved, unmapped addresses, which this replaces at one stroke.
        unsafe { self.map_extent(pointer(at), chunk.0, size, libc::PROT_NONE, libc::MAP_FIXED) }?;
        if !self.small {
            // SAFETY: advice about the mapping just made; without it pages are only smaller.
            unsafe { libc::madvise(pointer(at), size.as_usize(), libc::MADV_HUGEPAGE) };
        }
        Ok(())
    }

    // Allocates what has no page yet, slice by slice: a signal makes the kernel undo the call it
    // interrupts, and a long one might never get through.
    fn back(&self, start: u64, size: Bytes) -> std::io::Result<()> {
        for offset in (0..size.0).step_by(SLICE.0 as usize) {
            self.allocate(0, start + offset, SLICE.min(Bytes(size.0 - offset)))?;
        }
        Ok(())
    }

    fn punch(&self, start: u64, size: Bytes) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.allocate(mode, start, size)
            .map_err(|source| Error::Os { operation: "giving a chunk's pages back", source })
    }

    fn allocate(&self, mode: i32, start: u64, size: Bytes) -> std::io::Result<()> {
        let (start, length) = (start.cast_signed(), size.0.cast_signed());
        loop {
            // SAFETY: our own file; no memory of this process is read or written.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, length) } == 0 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    // Gives an extent huge pages, where the kernel can. It gathers small pages into huge ones, and adds
    // those that are missing. So each huge page begins with one small page: with none the kernel does
    // nothing, and with all of them it would allocate and clear everything twice, and copy it.
    fn make_huge(&self, start: u64, size: Bytes) {
        for offset in (0..size.0).step_by(PAGE.0 as usize) {
            if self.allocate(0, start + offset, Bytes(1)).is_err() {
                return;
            }
        }
        let Ok(window) = addresses::reserve(size) else { return };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: over addresses that were just reserved for this.
        if unsafe { self.map_extent(pointer(window), start, size, protection, libc::MAP_FIXED) }
            .is_ok()
        {
            // SAFETY: our own mapping of our own extent.
            unsafe { libc::madvise(pointer(window), size.as_usize(), libc::MADV_COLLAPSE) };
        }
        // SAFETY: the window is ours, and nothing refers to it.
        unsafe { libc::munmap(pointer(window), size.as_usize()) };
    }

    pub(super) unsafe fn map_extent(
        &self,
        at: *mut libc::c_void,
        start: u64,
        size: Bytes,
        protection: i32,
        flags: i32,
    ) -> Result<()> {
        let (length, flags) = (size.as_usize(), libc::MAP_SHARED | flags);
        // SAFETY: the caller owns the addresses; the extent is inside the file.
        let raw = unsafe {
            libc::mmap(at, length, protection, flags, self.file.as_raw_fd(), start.cast_signed())
        };
        check(if raw == libc::MAP_FAILED { -1 } else { 0 }, "mapping a chunk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_what_is_created_and_what_is_gone() {
        let pages = Pages::new(Bytes::mib(8), true).unwrap();
        let first = pages.create(Bytes::mib(4)).unwrap().unwrap();
        assert_eq!(pages.in_use().unwrap(), Bytes::mib(4));
        assert!(pages.create(Bytes::mib(6)).unwrap().is_none(), "over the budget");
        assert_eq!(pages.in_use().unwrap(), Bytes::mib(4));
        pages.destroy(first, Bytes::mib(4)).unwrap();
        assert_eq!(pages.in_use().unwrap(), Bytes::ZERO);
    }
}
