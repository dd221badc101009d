//! An allocator that puts large tables into mappings of their own, with huge pages.
//!
//! A walk looks things up all over tables of a hundred MiB. With pages of 4 KiB, each look-up
//! misses the TLB too, and each first touch is a page fault; with 2 MiB pages hardly any does. And
//! the tables must be returned to the kernel afterwards: the C library keeps up to 64 MiB of freed
//! memory, in a program that only asked why its memory is full. Only memory of this library comes
//! from here; the interpreter has its own allocator.
//!
//! Out of memory must be a `MemoryError` of Python, and Rust ends the process if an ordinary
//! allocation fails. So an examination first takes a [`Reserve`] of what it will need at the most.
//! That is where it learns that there is too little. A reserve is addresses only. If an allocation
//! fails nevertheless, the reserve is given back, and the allocation is tried again.

use std::alloc::{GlobalAlloc, Layout, System, alloc_zeroed};
use std::collections::TryReserveError;
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smaller allocations stay with the C library.
const LARGE: usize = 128 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// The smallest alignment of a mapping.
const PAGE: usize = 4096;

/// The system's allocator, with mappings for large allocations.
pub struct HugePages;

// SAFETY: whether an allocation is large is decided by its layout, which is the same in all calls
// about it. A large one is mapped and unmapped with its own size; all others are passed to the
// system's allocator.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are asked for.
        or_from_reserve(layout.size(), || unsafe {
            if is_large(layout) { map(layout.size()) } else { System.alloc(layout) }
        })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are asked for.
        or_from_reserve(layout.size(), || unsafe {
            if is_large(layout) { map(layout.size()) } else { System.alloc_zeroed(layout) }
        })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: it was mapped with this size, and nobody uses it any more.
            unsafe { libc::munmap(memory.cast(), whole(layout.size())) };
        } else {
            // SAFETY: the caller's promises are the ones that are asked for.
            unsafe { System.dealloc(memory, layout) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up, is one that a layout can have.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        or_from_reserve(size, || match (is_large(layout), is_large(new)) {
            // SAFETY: the caller's promises are the ones that are asked for.
            (false, false) => unsafe { System.realloc(memory, layout, size) },
            // SAFETY: it was mapped with this size.
            (true, true) => unsafe { remap(memory, layout.size(), size) },
            // SAFETY: the caller's promises are the ones that are asked for.
            _ => unsafe { self.moved(memory, layout, new) },
        })
    }
}

impl HugePages {
    /// Moves an allocation from one kind of memory to the other.
    unsafe fn moved(&self, memory: *mut u8, layout: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the caller promises that the size is not 0.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            let len = layout.size().min(new.size());
            // SAFETY: both are as long at least, and one of them is new.
            unsafe { memory.copy_to_nonoverlapping(moved, len) };
            // SAFETY: it was allocated with this layout, and is not used any more.
            unsafe { self.dealloc(memory, layout) };
        }
        moved
    }
}

/// The place of one reserve.
struct Slot {
    /// The address of a mapping; 0 if there is none, `BUSY` while one is put there.
    address: AtomicUsize,
    bytes: AtomicUsize,
}

const BUSY: usize = 1;

/// The reserves of all examinations that are running.
static RESERVES: [Slot; 16] =
    [const { Slot { address: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; 16];

/// Memory that is taken before it is needed. It is given back if an allocation fails.
pub(crate) struct Reserve {
    slot: &'static Slot,
    address: usize,
}

impl Reserve {
    /// Takes so many bytes, or returns `None` if there are not as many.
    pub(crate) fn take(bytes: usize) -> Option<Reserve> {
        let is_free = |slot: &&Slot| {
            slot.address.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let slot = RESERVES.iter().find(is_free)?;
        let bytes = whole(bytes.max(LARGE));
        let address = map(bytes).expose_provenance();
        slot.bytes.store(bytes, Ordering::Relaxed);
        slot.address.store(address, Ordering::Release);
        // One that does not exist must not be made: dropping it would unmap what is at address 0.
        if address == 0 { None } else { Some(Reserve { slot, address }) }
    }

    /// Returns whether it had to be given back.
    pub(crate) fn is_spent(&self) -> bool {
        self.slot.address.load(Ordering::Acquire) != self.address
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        give_back(self.slot, self.address);
    }
}

/// Unmaps the reserve in a slot, if it is still this one. Returns whether it was.
fn give_back(slot: &Slot, address: usize) -> bool {
    let bytes = slot.bytes.load(Ordering::Relaxed);
    if slot.address.compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    let memory = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: it was mapped by `Reserve::take` with this size, and nobody uses it. It was taken out
    // of its slot just now, so nobody else unmaps it. A new mapping cannot have had its address
    // before, so the size is this one's.
    unsafe { libc::munmap(memory, bytes) };
    true
}

/// Tries to allocate. Where that fails, gives reserves back and tries again, unless none of them is
/// as large: then it would be in vain.
fn or_from_reserve(size: usize, mut allocate: impl FnMut() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if memory.is_null() { from_reserve(size, allocate) } else { memory }
}

#[cold]
fn from_reserve(size: usize, mut allocate: impl FnMut() -> *mut u8) -> *mut u8 {
    for slot in &RESERVES {
        let address = slot.address.load(Ordering::Acquire);
        let is_enough = slot.bytes.load(Ordering::Relaxed) >= size;
        if address <= BUSY || !is_enough || !give_back(slot, address) {
            continue;
        }
        let memory = allocate();
        if !memory.is_null() {
            return memory;
        }
    }
    null_mut()
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// Rounds a size up to whole huge pages if it is at least one: the kernel aligns such mappings, and
/// moves them with their huge pages. The untouched rest of the last one uses addresses only.
fn whole(size: usize) -> usize {
    if size < HUGE_PAGE { size } else { size.next_multiple_of(HUGE_PAGE) }
}

fn map(size: usize) -> *mut u8 {
    let size = whole(size);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the kernel has room.
    mapped(unsafe { libc::mmap(null_mut(), size, access, flags, -1, 0) }, size)
}

unsafe fn remap(memory: *mut u8, size: usize, new: usize) -> *mut u8 {
    let (size, new) = (whole(size), whole(new));
    // SAFETY: the caller's mapping, of this size, which may move.
    mapped(unsafe { libc::mremap(memory.cast(), size, new, libc::MREMAP_MAYMOVE) }, new)
}

/// Returns what the kernel returned, after asking for huge pages.
fn mapped(memory: *mut libc::c_void, size: usize) -> *mut u8 {
    if memory == libc::MAP_FAILED {
        return null_mut();
    }
    if size >= HUGE_PAGE {
        // SAFETY: the range is a mapping of ours, and advice changes nothing in it. A kernel that
        // does not take it is slower, no more.
        unsafe { libc::madvise(memory, size, libc::MADV_HUGEPAGE) };
    }
    memory.cast()
}

/// Small tables, and what is made of them.
const LITTLE: usize = 8 << 20;

/// There is not enough memory to examine the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl From<TryReserveError> for OutOfMemory {
    fn from(_: TryReserveError) -> OutOfMemory {
        OutOfMemory
    }
}

/// Takes a reserve for tables whose size does not depend on the heap, and for so many bytes more.
pub(crate) fn reserve(bytes: usize) -> Result<Reserve, OutOfMemory> {
    Reserve::take(LITTLE.saturating_add(bytes)).ok_or(OutOfMemory)
}

/// Takes a reserve for the analysis of a graph: its documentation counts 117 bytes for a node of the
/// worst graph with four references each; paths and what becomes of them come on top.
pub(crate) fn reserve_for(nodes: usize, edges: usize) -> Result<Reserve, OutOfMemory> {
    reserve(nodes.saturating_mul(192).saturating_add(edges.saturating_mul(16)))
}

/// Returns so many zeros. A large table of them is fresh memory that nobody has touched.
pub(crate) fn zeroed<T: Number>(len: usize) -> Result<Vec<T>, OutOfMemory> {
    let Ok(layout) = Layout::array::<T>(len) else { return Err(OutOfMemory) };
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        return Err(OutOfMemory);
    }
    let numbers = slice_from_raw_parts_mut(memory, len);
    // SAFETY: it was allocated with this layout by the allocator of boxes, and a number of zeros is
    // 0.
    Ok(unsafe { Box::from_raw(numbers) }.into_vec())
}

/// A number that is 0 if all its bytes are.
pub(crate) trait Number: Copy {}
impl Number for u32 {}
impl Number for i32 {}

/// Returns an error if a reserve had to be given back.
pub(crate) fn check(reserve: &Reserve) -> Result<(), OutOfMemory> {
    if reserve.is_spent() { Err(OutOfMemory) } else { Ok(()) }
}
