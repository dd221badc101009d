//! The pages of a `host` device: one sparse file of memory, extents of it as chunks.
//!
//! A chunk is an extent of an anonymous in-memory file. Creating it makes the kernel find the
//! pages at once, so that memory that was granted is there; destroying it punches the extent out,
//! and the pages are gone. Mapping is a shared mapping of the extent over reserved addresses, so
//! content moves between addresses without a copy. The file's block count is the kernel's own word
//! for what is in use. Offsets are never used twice: a sparse file has more than anybody will need.
#![allow(unsafe_code, reason = "maps, protects and backs pages")]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::PAGE;
use crate::backend::Handle;
use crate::{Address, Bytes, Error, Result};

const FILE_BYTES: i64 = 1 << 62;

pub(super) struct Pages {
    file: File,
    budget: Bytes,
    small: bool,
    /// Where the next extent begins. Held while the kernel finds its pages: two creations at
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

    /// What the kernel says this device holds.
    pub(super) fn in_use(&self) -> Bytes {
        let blocks = self.file.metadata().map_or(0, |metadata| metadata.blocks());
        Bytes(blocks * 512)
    }

    pub(super) fn reserve(&self, size: Bytes) -> Result<Address> {
        let length = size.0.checked_add(PAGE.0).and_then(|length| usize::try_from(length).ok());
        let Some(length) = length else {
            let rule = "more than there are addresses".to_owned();
            return Err(Error::BadSize {
                device: crate::DeviceId::Host,
                operation: "reserve",
                size,
                rule,
            });
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: fresh addresses of the kernel's choice, inaccessible; touches nothing of ours.
        let raw = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(Error::os("reserving addresses"));
        }
        let start = raw.addr();
        let base = start.next_multiple_of(PAGE.as_usize());
        let (before, after) = (base - start, start + length - base - size.as_usize());
        // The rest of the over-long mapping, on both sides.
        for (at, length) in [(start, before), (base + size.as_usize(), after)] {
            if length > 0 {
                // SAFETY: part of the mapping just made, outside what is handed out.
                unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), length) };
            }
        }
        Ok(Address(base as u64))
    }

    pub(super) unsafe fn release(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller gives a whole reservation back, and nothing is mapped in it.
        let outcome = unsafe { libc::munmap(pointer(at), size.as_usize()) };
        check(outcome, "releasing addresses")
    }

    /// A chunk, or `None` where the budget or the machine has no room.
    pub(super) fn create(&self, size: Bytes) -> Result<Option<Handle>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if size > self.budget.saturating_sub(self.in_use()) {
            return Ok(None);
        }
        let start = *next;
        if let Err(error) = self.back(start, size) {
            self.punch(start, size)?;
            return match error.raw_os_error() {
                Some(libc::ENOMEM | libc::ENOSPC) => Ok(None),
                _ => Err(Error::Os { operation: "backing a chunk with pages", source: error }),
            };
        }
        *next = start + size.0;
        drop(next);
        if !self.small {
            self.make_huge(start, size);
        }
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

    pub(super) unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the caller gives whole mappings of its own.
        let outcome = unsafe { libc::mprotect(pointer(at), size.as_usize(), protection) };
        check(outcome, "opening a mapping")
    }

    pub(super) unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the caller gives whole mappings that no work uses. They become bare addresses at
        // one stroke, so that nobody else can be given them in between.
        let raw =
            unsafe { libc::mmap(pointer(at), size.as_usize(), libc::PROT_NONE, flags, -1, 0) };
        check(if raw == libc::MAP_FAILED { -1 } else { 0 }, "unmapping")
    }

    fn back(&self, start: u64, size: Bytes) -> std::io::Result<()> {
        self.allocate(0, start, size)
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

    // Gathers the small pages of a fresh extent into huge ones, where the kernel can; a kernel
    // that cannot leaves them as they are.
    fn make_huge(&self, start: u64, size: Bytes) {
        let Ok(window) = self.reserve(size) else { return };
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

    unsafe fn map_extent(
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

fn pointer(at: Address) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).expect("an address of this process"))
}

fn check(outcome: i32, operation: &'static str) -> Result<()> {
    if outcome == 0 { Ok(()) } else { Err(Error::os(operation)) }
}

/// Whether this kernel gives huge pages, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// For anonymous memory: backups. The setting, as the kernel words it.
    pub(crate) anonymous: Option<String>,
    /// Whether a chunk of a `host` device was seen to get them.
    pub(crate) chunks: bool,
}

/// Asks the settings, and tries one chunk.
pub(crate) fn huge_pages() -> HugePages {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    let chosen = setting.and_then(|text| {
        text.split_whitespace()
            .find_map(|word| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned()))
    });
    HugePages { anonymous: chosen, chunks: try_one().unwrap_or(false) }
}

fn try_one() -> Result<bool> {
    let pages = Pages::new(PAGE, false)?;
    let Some(_chunk) = pages.create(PAGE)? else { return Ok(false) };
    let at = pages.reserve(PAGE)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: over addresses that were just reserved for this.
    unsafe { pages.map_extent(pointer(at), 0, PAGE, protection, libc::MAP_FIXED) }?;
    // SAFETY: the page just mapped, writable.
    unsafe { pointer(at).cast::<u8>().write_volatile(1) };
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let huge = mapping_is_huge(&maps, at);
    // SAFETY: ours, and nothing refers to it.
    unsafe { pages.release(at, PAGE) }?;
    Ok(huge)
}

fn mapping_is_huge(smaps: &str, at: Address) -> bool {
    let start = format!("{:x}-", at.0);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let size = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    size.is_some_and(|size| size.trim() != "0 kB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_what_is_created_and_what_is_gone() {
        let pages = Pages::new(Bytes::mib(8), true).unwrap();
        let first = pages.create(Bytes::mib(4)).unwrap().unwrap();
        assert_eq!(pages.in_use(), Bytes::mib(4));
        assert!(pages.create(Bytes::mib(6)).unwrap().is_none(), "over the budget");
        assert_eq!(pages.in_use(), Bytes::mib(4));
        pages.destroy(first, Bytes::mib(4)).unwrap();
        assert_eq!(pages.in_use(), Bytes::ZERO);
    }

    #[test]
    fn smaps_are_read_at_the_right_mapping() {
        let smaps = "7f00-7f10 rw-s\nShmemPmdMapped:  0 kB\n7f20-7f40 rw-s\nRss: 4 kB\nShmemPmdMapped:    2048 kB\n";
        assert!(!mapping_is_huge(smaps, Address(0x7f00)));
        assert!(mapping_is_huge(smaps, Address(0x7f20)));
        assert!(!mapping_is_huge(smaps, Address(0x9999)));
    }
}
