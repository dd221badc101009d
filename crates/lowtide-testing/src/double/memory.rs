//! Memory of this machine that plays device memory, and the caller's own memory,
//! touched so that a wrong address is an answer and not a crash.
//!
//! A device address is an address of a [`Reservation`]: real address space that
//! nobody may touch, so a host program that follows a device pointer dies as it
//! would beside a GPU. The bytes are elsewhere, in an [`Extent`] per handle, which
//! stays until the last operation that found it is done with it. What an address
//! means is therefore only a matter of tables (see [`super::tables`]), and an
//! operation that races with an unmap cannot crash the process that tests it.
#![allow(unsafe_code, reason = "maps memory and copies it by address")]

use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{PoisonError, RwLock};
use std::{io, ptr};

use lowtide_device::digest::PAGE_BYTES;
use rustix::mm::{MapFlags, ProtFlags};

use super::files::{Place, SMALL_PAGE};

/// The most bytes of the caller's memory that one call to the kernel copies.
const CHUNK_BYTES: usize = 16 << 20;

/// What new memory holds at both ends of each page. No driver promises zeros.
const DIRT: u8 = 0xd1;

/// Physical memory: pages of this machine, taken when they are written, except for the ends of each
/// page of the device.
pub(super) struct Extent {
    base: *mut u8,
    bytes: usize,
    /// Where it lies once it is exported; until then it is private. Held while bytes are copied.
    place: RwLock<Option<Place>>,
    /// Set for each page of the device that was filled with zeros and not written since. While it is private,
    /// it takes nothing of this machine, and need not be read.
    blank: Box<[AtomicBool]>,
}

// SAFETY: the mapping belongs to the extent alone and is only copied into and out of.
unsafe impl Send for Extent {}
// SAFETY: as above; operations that race on its content race as they would on a GPU.
unsafe impl Sync for Extent {}

impl Extent {
    /// Maps new memory, which is not zero; `None` if this machine has no more.
    pub(super) fn new(bytes: usize) -> Option<Extent> {
        let base = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?.cast();
        let extent = Extent::with(base, bytes, None);
        // Only the ends, so that memory which nobody writes takes little of this machine's.
        for start in (0..bytes).step_by(PAGE_BYTES) {
            let end = bytes.min(start + PAGE_BYTES);
            extent.write(start, &[DIRT]);
            extent.write(end - 1, &[DIRT]);
        }
        Some(extent)
    }

    /// Maps memory that was exported, by this process or another.
    pub(super) fn at_place(place: Place, bytes: usize) -> Option<Extent> {
        let base = map_place(ptr::null_mut(), bytes, &place).ok()?.cast();
        Some(Extent::with(base, bytes, Some(place)))
    }

    fn with(base: *mut u8, bytes: usize, place: Option<Place>) -> Extent {
        let blank = (0..bytes.div_ceil(PAGE_BYTES)).map(|_| AtomicBool::new(false)).collect();
        Extent { base, bytes, place: RwLock::new(place), blank }
    }

    /// Moves it, with its bytes, to where other processes can have it, if it is not there yet.
    pub(super) fn move_to_place(&self) -> io::Result<Place> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = &*place {
            return Ok(place.clone());
        }
        let new = Place::new(self.bytes as u64)?;
        for start in touched_pages(self.base.addr(), self.bytes)? {
            let bytes = (self.bytes - start).min(SMALL_PAGE as usize);
            // SAFETY: the page is in our mapping.
            let page = unsafe { self.base.add(start) };
            // SAFETY: as above, and the lock keeps others from writing it.
            let page = unsafe { std::slice::from_raw_parts(page, bytes) };
            new.file().write_all_at(page, new.offset() + start as u64)?;
        }
        map_place(self.base.cast(), self.bytes, &new)?;
        Ok(place.insert(new).clone())
    }

    /// Returns where it lies, once it is exported.
    pub(super) fn place(&self) -> Option<Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the address, for memory that the caller may touch.
    pub(super) fn address(&self) -> usize {
        self.base.addr()
    }

    /// Returns whether a range of it was filled with zeros and not written since.
    pub(super) fn is_blank(&self, offset: usize, bytes: usize) -> bool {
        self.place().is_none() && self.pages(offset, bytes).iter().all(|page| page.load(SeqCst))
    }

    /// Fills a range with zeros. Whole pages of the device go back to this machine.
    pub(super) fn clear(&self, offset: usize, bytes: usize) {
        let end = offset + bytes;
        let whole = offset.next_multiple_of(PAGE_BYTES)..end / PAGE_BYTES * PAGE_BYTES;
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        if whole.is_empty() || place.is_some() {
            drop(place);
            return self.write(offset, &vec![0; bytes]);
        }
        // Before the memory goes: a write that comes between is lost, and nobody takes its page for blank.
        for page in self.pages(whole.start, whole.len()) {
            page.store(true, SeqCst);
        }
        assert!(end <= self.bytes);
        // SAFETY: the assertion keeps the range inside our mapping.
        let start = unsafe { self.base.add(whole.start) };
        // SAFETY: as above; private memory without a file is zero afterwards.
        let done = unsafe { libc::madvise(start.cast(), whole.len(), libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "memory of ours");
        drop(place);
        self.write(offset, &vec![0; whole.start - offset]);
        self.write(whole.end, &vec![0; end - whole.end]);
    }

    fn pages(&self, offset: usize, bytes: usize) -> &[AtomicBool] {
        &self.blank[offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES)]
    }

    /// Copies bytes out of it.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let _stays = self.place.read();
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: the assertion keeps the range inside our mapping.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: as above, and `into` is other memory.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes into it.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        let _stays = self.place.read();
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes));
        for page in self.pages(offset, from.len()).iter().filter(|page| page.load(SeqCst)) {
            page.store(false, SeqCst);
        }
        // SAFETY: the assertion keeps the range inside our mapping.
        let into = unsafe { self.base.add(offset) };
        // SAFETY: as above, and `from` is other memory.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        unmap(self.base.cast(), self.bytes);
    }
}

/// Address space without memory.
pub(super) struct Reservation {
    start: *mut c_void,
    mapped_bytes: usize,
    base: usize,
}

// SAFETY: nothing is ever read or written through it.
unsafe impl Send for Reservation {}

impl Reservation {
    /// Reserves address space of this size and alignment; `None` if there is none.
    pub(super) fn new(bytes: usize, alignment: usize) -> Option<Reservation> {
        let mapped_bytes = bytes.checked_add(alignment)?;
        let start = map(mapped_bytes, libc::PROT_NONE)?;
        Some(Reservation { start, mapped_bytes, base: start.addr().next_multiple_of(alignment) })
    }

    /// Returns the first address.
    pub(super) fn base(&self) -> u64 {
        self.base as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.start, self.mapped_bytes);
    }
}

fn map(bytes: usize, protection: i32) -> Option<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

/// Maps memory at a place; over the private memory at `at` unless that is null.
fn map_place(at: *mut c_void, bytes: usize, place: &Place) -> io::Result<*mut c_void> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let over = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | over;
    // SAFETY: a fresh mapping, or one in place of a mapping of ours that nobody uses meanwhile.
    Ok(unsafe { rustix::mm::mmap(at, bytes, rights, flags, place.file(), place.offset()) }?)
}

/// Returns the offsets of the pages that were written, so that the others take no memory.
fn touched_pages(at: usize, bytes: usize) -> io::Result<impl Iterator<Item = usize>> {
    let mut entries = vec![0; bytes.div_ceil(SMALL_PAGE as usize) * 8];
    let first = at as u64 / SMALL_PAGE * 8;
    File::open("/proc/thread-self/pagemap")?.read_exact_at(&mut entries, first)?;
    // The two highest bits: it is in memory, or in swap space.
    let is_touched = |entry: &[u8]| entry[7] >> 6 != 0;
    let pages = entries.chunks(8).map(is_touched).collect::<Vec<_>>().into_iter().enumerate();
    Ok(pages.filter(|(_, touched)| *touched).map(|(index, _)| index * SMALL_PAGE as usize))
}

fn unmap(at: *mut c_void, bytes: usize) {
    // SAFETY: called once per mapping, by the drop of the value that owns it.
    let done = unsafe { libc::munmap(at, bytes) };
    debug_assert_eq!(done, 0);
}

/// Copies out of the caller's memory; false where some of it cannot be read.
pub(super) fn read_host(at: usize, into: &mut [u8]) -> bool {
    into.chunks_mut(CHUNK_BYTES).enumerate().all(|(index, chunk)| {
        let near = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
        let far = far_end(at, index, chunk.len());
        // SAFETY: only reads a number. The first thread may have ended, so it is this one's.
        let me = unsafe { libc::gettid() };
        // SAFETY: `near` is `chunk`; the kernel checks `far`.
        let done = unsafe { libc::process_vm_readv(me, &raw const near, 1, &raw const far, 1, 0) };
        usize::try_from(done) == Ok(chunk.len())
    })
}

/// Calls a function of the program's, which it gave to the driver with its argument.
pub(super) fn call_host(function: usize, data: usize) {
    let function = std::ptr::with_exposed_provenance::<()>(function);
    // SAFETY: the program's promise.
    let function: extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
    function(data);
}

/// Copies into the caller's memory; false where some of it cannot be written.
pub(super) fn write_host(at: usize, from: &[u8]) -> bool {
    from.chunks(CHUNK_BYTES).enumerate().all(|(index, chunk)| {
        let near = libc::iovec { iov_base: chunk.as_ptr().cast_mut().cast(), iov_len: chunk.len() };
        let far = far_end(at, index, chunk.len());
        // SAFETY: only reads a number. The first thread may have ended, so it is this one's.
        let me = unsafe { libc::gettid() };
        // SAFETY: `near` is `chunk`, which is only read; the kernel checks `far`.
        let done = unsafe { libc::process_vm_writev(me, &raw const near, 1, &raw const far, 1, 0) };
        usize::try_from(done) == Ok(chunk.len())
    })
}

fn far_end(at: usize, chunk: usize, bytes: usize) -> libc::iovec {
    let address = at.wrapping_add(chunk * CHUNK_BYTES);
    libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: bytes }
}

/// Returns whether every page of the range is mapped, readable and (if asked) writable.
pub(super) fn is_usable_host(at: usize, bytes: usize, writable: bool) -> bool {
    let Some(end) = at.checked_add(bytes) else { return false };
    let maps = std::fs::read_to_string("/proc/thread-self/maps").unwrap_or_default();
    let mut covered = at;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let parsed = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16));
        let (Ok(from), Ok(to)) = parsed else { continue };
        let usable = rights.starts_with('r') && (!writable || rights[1..].starts_with('w'));
        if usable && from <= covered && covered < to {
            covered = to;
        }
    }
    covered >= end
}
