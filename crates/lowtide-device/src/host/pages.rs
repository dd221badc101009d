//! The pages of a `host` device: one sparse file of memory, extents of it as chunks.
//!
//! A chunk is an extent of an anonymous in-memory file. Creating it makes the kernel allocate the
//! pages at once; destroying it punches the extent out, and the pages are gone. Mapping is a shared
//! mapping of the extent over reserved addresses, so content moves between addresses without a copy.
//! The file's block count is the kernel's own number of what is in use. Offsets are never used twice:
//! a sparse file has enough of them.
//! Reserved addresses are a mapping without memory, and are again after an unmap.
#![allow(unsafe_code, reason = "maps extents of the file over addresses")]

use std::ffi::c_void;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::Mutex;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::backend::Handle;
use crate::facts::SizeRule;
use crate::os::{headroom, memory};
use crate::sync::lock;
use crate::{Address, Bytes, DeviceId, Error, Result};

/// The page of a `host` device.
pub(super) const PAGE: Bytes = memory::HUGE_PAGE;
const FILE_BYTES: u64 = 1 << 62;
const SLICE: Bytes = Bytes::mib(64);
const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

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
        let file = memfd_create("lowtide-host", MemfdFlags::CLOEXEC).map(File::from);
        let file = file.map_err(Error::os("making the file of a host device"))?;
        file.set_len(FILE_BYTES).map_err(Error::os("sizing the file of a host device"))?;
        Ok(Pages { file, budget, small, next: Mutex::new(0) })
    }

    /// Asks the kernel how much this device uses.
    pub(super) fn in_use(&self) -> Result<Bytes> {
        let file = self.file.metadata().map_err(Error::os("reading the memory in use"))?;
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
            return match error {
                Errno::NOMEM | Errno::NOSPC => Ok(None),
                _ => Err(Error::os("backing a chunk with pages")(error)),
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
        unsafe { self.map_extent(at, chunk.0, size, ProtFlags::empty()) }?;
        if !self.small {
            // SAFETY: advice about the mapping just made; without it pages are only smaller.
            let _unknown =
                unsafe { mm::madvise(pointer(at), size.as_usize(), Advice::LinuxHugepage) };
        }
        Ok(())
    }

    // Allocates what has no page yet, slice by slice: a signal makes the kernel undo the call it
    // interrupts, and a long one might never get through.
    fn back(&self, start: u64, size: Bytes) -> rustix::io::Result<()> {
        for offset in (0..size.0).step_by(SLICE.0 as usize) {
            let slice = SLICE.min(Bytes(size.0 - offset));
            self.allocate(FallocateFlags::empty(), start + offset, slice)?;
        }
        Ok(())
    }

    fn punch(&self, start: u64, size: Bytes) -> Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.allocate(mode, start, size).map_err(Error::os("giving a chunk's pages back"))
    }

    fn allocate(&self, mode: FallocateFlags, start: u64, size: Bytes) -> rustix::io::Result<()> {
        rustix::io::retry_on_intr(|| fallocate(&self.file, mode, start, size.0))
    }

    // Gives an extent huge pages, where the kernel can. It gathers small pages into huge ones, and adds
    // those that are missing. So each huge page begins with one small page: with none the kernel does
    // nothing, and with all of them it would allocate and clear everything twice, and copy it.
    fn make_huge(&self, start: u64, size: Bytes) {
        for offset in (0..size.0).step_by(PAGE.0 as usize) {
            if self.allocate(FallocateFlags::empty(), start + offset, Bytes(1)).is_err() {
                return;
            }
        }
        let Ok(window) = reserve(size) else { return };
        // SAFETY: over addresses that were just reserved for this.
        if unsafe { self.map_extent(window, start, size, WRITABLE) }.is_ok() {
            // SAFETY: our own mapping of our own extent. (rustix does not know this advice.)
            unsafe { libc::madvise(pointer(window), size.as_usize(), libc::MADV_COLLAPSE) };
        }
        memory::unmap(pointer(window).cast(), size);
    }

    unsafe fn map_extent(
        &self,
        at: Address,
        start: u64,
        size: Bytes,
        protection: ProtFlags,
    ) -> Result<()> {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the caller owns the addresses; the extent is inside the file.
        let mapped =
            unsafe { mm::mmap(pointer(at), size.as_usize(), protection, flags, &self.file, start) };
        mapped.map(drop).map_err(Error::os("mapping a chunk"))
    }
}

pub(super) fn reserve(size: Bytes) -> Result<Address> {
    if size.0.checked_add(PAGE.0).is_none() {
        let rule = SizeRule::AddressSpace;
        return Err(Error::BadSize { device: DeviceId::Host, operation: "reserve", size, rule });
    }
    let at = memory::map_aligned(size, ProtFlags::empty());
    let at = at.map_err(Error::os("reserving addresses"))?;
    Ok(Address(at.as_ptr().expose_provenance() as u64))
}

pub(super) unsafe fn release(at: Address, size: Bytes) -> Result<()> {
    // SAFETY: the caller gives a whole reservation back, and nothing is mapped in it.
    let released = unsafe { mm::munmap(pointer(at), size.as_usize()) };
    released.map_err(Error::os("releasing addresses"))
}

pub(super) unsafe fn open(at: Address, size: Bytes) -> Result<()> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller gives whole mappings of its own.
    let opened = unsafe { mm::mprotect(pointer(at), size.as_usize(), access) };
    opened.map_err(Error::os("opening a mapping"))
}

pub(super) unsafe fn unmap(at: Address, size: Bytes) -> Result<()> {
    let (none, flags) = (ProtFlags::empty(), memory::PRIVATE | MapFlags::FIXED);
    // SAFETY: the caller gives whole mappings that no work uses. They become bare addresses at
    // one stroke, so that nobody else can be given them in between.
    let bare = unsafe { mm::mmap_anonymous(pointer(at), size.as_usize(), none, flags) };
    bare.map(drop).map_err(Error::os("unmapping"))
}

fn pointer(at: Address) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).expect("an address of this process"))
}

/// Creates a chunk of a `host` device and returns whether the kernel backs it with a huge page.
pub(crate) fn chunks_are_huge() -> bool {
    let try_one = || -> Result<bool> {
        let pages = Pages::new(PAGE, false)?;
        let Some(_chunk) = pages.create(PAGE)? else { return Ok(false) };
        let at = reserve(PAGE)?;
        // SAFETY: over addresses that were just reserved for this.
        let mapped = unsafe { pages.map_extent(at, 0, PAGE, WRITABLE) };
        let is_huge = mapped.is_ok() && {
            // SAFETY: the page just mapped, writable.
            unsafe { pointer(at).cast::<u8>().write_volatile(1) };
            mapping_is_huge(&fs::read_to_string("/proc/self/smaps").unwrap_or_default(), at)
        };
        memory::unmap(pointer(at).cast(), PAGE);
        Ok(is_huge)
    };
    try_one().unwrap_or(false)
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
        assert_eq!(pages.in_use().unwrap(), Bytes::mib(4));
        assert!(pages.create(Bytes::mib(6)).unwrap().is_none(), "over the budget");
        assert_eq!(pages.in_use().unwrap(), Bytes::mib(4));
        pages.destroy(first, Bytes::mib(4)).unwrap();
        assert_eq!(pages.in_use().unwrap(), Bytes::ZERO);
    }

    #[test]
    fn smaps_are_read_at_the_right_mapping() {
        let smaps = "7f00-7f10 rw-s\nShmemPmdMapped:  0 kB\n7f20-7f40 rw-s\nRss: 4 kB\nShmemPmdMapped:    2048 kB\n";
        assert!(!mapping_is_huge(smaps, Address(0x7f00)));
        assert!(mapping_is_huge(smaps, Address(0x7f20)));
        assert!(!mapping_is_huge(smaps, Address(0x9999)));
    }
}
