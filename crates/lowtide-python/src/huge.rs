//! Large tables in huge pages.
//!
//! A walk looks things up all over tables of a hundred MiB. With pages of 4 KiB each look-up misses
//! the processor's table of pages, too, and each first touch is a fault; with 2 MiB hardly any. Only
//! what this library allocates itself is asked for like this: the interpreter has its own allocator.

use std::alloc::{GlobalAlloc, Layout, System};

/// Below this it makes no difference.
const LARGE: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// The system's allocator, which asks for huge pages where something is large.
pub(crate) struct HugePages;

// SAFETY: every call goes to the system's allocator as it is, and what that returns is returned.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are asked for.
        let memory = unsafe { System.alloc(layout) };
        advise(memory, layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are asked for.
        let memory = unsafe { System.alloc_zeroed(layout) };
        advise(memory, layout.size());
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the ones that are asked for.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are asked for.
        let memory = unsafe { System.realloc(memory, layout, size) };
        advise(memory, size);
        memory
    }
}

fn advise(memory: *mut u8, size: usize) {
    if size < LARGE || memory.is_null() {
        return;
    }
    let first = memory.addr().next_multiple_of(HUGE_PAGE);
    let last = (memory.addr() + size) / HUGE_PAGE * HUGE_PAGE;
    // SAFETY: the range lies in what was just allocated, and advice changes nothing in it. A kernel
    // that does not take it is slower, no more.
    unsafe { libc::madvise(memory.with_addr(first).cast(), last - first, libc::MADV_HUGEPAGE) };
}
