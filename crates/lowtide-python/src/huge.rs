//! An allocator that puts large tables into mappings of their own, with huge pages.
//!
//! A walk looks things up all over tables of a hundred MiB. With pages of 4 KiB, each look-up
//! misses the TLB too, and each first touch is a page fault; with 2 MiB pages hardly any does. And
//! the tables must be returned to the kernel afterwards: the C library keeps up to 64 MiB of freed
//! memory, in a program that only asked why its memory is full. Only memory of this library comes
//! from here; the interpreter has its own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// Smaller allocations stay with the C library.
const LARGE: usize = 128 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// The smallest alignment of a mapping.
const PAGE: usize = 4096;

/// The system's allocator, with mappings for large allocations.
pub(crate) struct HugePages;

// SAFETY: whether an allocation is large is decided by its layout, which is the same in all calls
// about it. A large one is mapped and unmapped with its own size; all others are passed to the
// system's allocator.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are the ones that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are the ones that are asked for.
        unsafe { System.alloc_zeroed(layout) }
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
        match (is_large(layout), is_large(new)) {
            // SAFETY: the caller's promises are the ones that are asked for.
            (false, false) => unsafe { System.realloc(memory, layout, size) },
            // SAFETY: it was mapped with this size.
            (true, true) => unsafe { remap(memory, layout.size(), size) },
            // SAFETY: the caller's promises are the ones that are asked for.
            _ => unsafe { self.moved(memory, layout, new) },
        }
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
