//! The end of the program when it can get no more host memory: a message and an exit code of ours,
//! where Rust's own answer is to abort.
#![allow(unsafe_code, reason = "an allocator is unsafe to write; this one asks the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic;

use super::ending;

#[global_allocator]
static ALLOCATOR: OrEnd = OrEnd;

/// The system's allocator, which ends the program where there is nothing to be had.
struct OrEnd;

// SAFETY: every call is passed on to the system's allocator as it is, and its answer returned.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        checked(unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline]
fn checked(at: *mut u8) -> *mut u8 {
    if at.is_null() {
        end();
    }
    at
}

/// Ends the program the same way where a thread cannot be started for want of memory.
///
/// A new thread maps a stack for its signal handlers before it runs any code of ours. Where that fails,
/// the standard library panics, and nothing but the hook of panics hears of it first.
pub(super) fn end_without_memory_for_threads() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |raised| {
        if raised.location().is_some_and(|place| place.file().ends_with("/stack_overflow.rs")) {
            end();
        }
        before(raised);
    }));
}

// Allocates nothing, and runs no exit handlers, which might.
#[cold]
fn end() -> ! {
    const MESSAGE: &str =
        "lowtide: out of host memory: the machine, a cgroup or `ulimit -v` allows no more\n";
    // SAFETY: the message is valid for its length. Where it cannot be written there is nobody to tell.
    unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(ending::COULD_NOT_RUN.into()) }
}
