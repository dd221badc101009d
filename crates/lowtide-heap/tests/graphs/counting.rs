//! An allocator that counts: the bytes that each thread has in use, and the most it had. By thread,
//! so that tests which run at the same time do not count each other's.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; the crate itself has none")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Below zero where a thread frees what another allocated.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static HIGHEST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn more(bytes: usize) {
    IN_USE.set(IN_USE.get() + bytes.cast_signed());
    HIGHEST.set(HIGHEST.get().max(IN_USE.get()));
}

fn less(bytes: usize) {
    IN_USE.set(IN_USE.get() - bytes.cast_signed());
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

/// Starts to count anew the most that this thread has in use. Returns what it has in use now.
pub(crate) fn begin() -> isize {
    HIGHEST.set(IN_USE.get());
    IN_USE.get()
}

/// Returns by how many bytes the most that this thread had in use since [`begin`] is more than
/// `before`.
pub(crate) fn highest_above(before: isize) -> usize {
    usize::try_from(HIGHEST.get() - before).expect("what was in use is still in use")
}
