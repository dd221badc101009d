//! An allocator that counts: what is in use, and what was at the highest.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; the crate itself has none")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn more(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Relaxed) + bytes;
    HIGHEST.fetch_max(now, Relaxed);
}

fn less(bytes: usize) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps the same contract with us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps the same contract with us.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if both were there for a moment: the system may have to copy.
        more(size);
        less(layout.size());
        // SAFETY: the caller keeps the same contract with us.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        less(layout.size());
        // SAFETY: the caller keeps the same contract with us.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What is in use now; the highest is counted from here.
pub(crate) fn begin() -> usize {
    let now = IN_USE.load(Relaxed);
    HIGHEST.store(now, Relaxed);
    now
}

/// The most that was in use since.
pub(crate) fn highest() -> usize {
    HIGHEST.load(Relaxed)
}
