//! Tables in mappings of their own, large ones in huge pages.
//!
//! A walk looks things up all over tables of a hundred MiB. With pages of 4 KiB each look-up misses
//! the processor's table of pages, too, and each first touch is a fault; with 2 MiB hardly any. And when
//! the answer is there they have to go: the C library keeps for later what it is given back, up to
//! 64 MiB of it, in a program that only asked why its memory is full. Only what this library allocates
//! itself comes here: the interpreter has its own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// Below this the C library may keep it.
const LARGE: usize = 128 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// What every mapping is aligned to, at the least.
const PAGE: usize = 4096;

/// The system's allocator, and mappings for what is large.
pub(crate) struct HugePages;

// SAFETY: what is large and what is not goes by its layout, which is the same in all calls about it. The
// one is mapped and unmapped with its own size; all else is the system's allocator's, as it is.
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
    /// From the one kind of memory to the other.
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

/// In whole huge pages, where there is one in it: the kernel aligns such mappings, and moves them with
/// their huge pages. What nobody touches of the last one costs nothing but addresses.
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

/// What the kernel returned, with huge pages asked for.
fn mapped(memory: *mut libc::c_void, size: usize) -> *mut u8 {
    if memory == libc::MAP_FAILED {
        return null_mut();
    }
    if size >= HUGE_PAGE {
        // SAFETY: the range is a mapping of ours, and advice changes nothing in it. A kernel that does
        // not take it is slower, no more.
        unsafe { libc::madvise(memory, size, libc::MADV_HUGEPAGE) };
    }
    memory.cast()
}
