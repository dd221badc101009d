//! What can be read of a live object without running anything.

use pyo3::ffi::{self, PyObject};

/// From this count on an object is immortal, and its count says nothing.
const IMMORTAL: u32 = 1 << 29;
/// So far ahead memory is asked for.
pub(crate) const AHEAD: usize = 16;

/// How many references to a live object there are. Newer interpreters keep flags above the lower half.
pub(crate) fn count_of(object: *mut PyObject) -> u32 {
    // SAFETY: the object is alive, and a count is the first thing in it.
    unsafe { object.cast::<u32>().read() }
}

/// Whether a count is that of an object that never ends.
pub(crate) fn is_immortal(count: u32) -> bool {
    count >= IMMORTAL
}

/// The first element of a tuple; `None` where it has none, or is no tuple.
pub(crate) fn first_of(tuple: *mut PyObject) -> Option<*mut PyObject> {
    // SAFETY: it is alive.
    let is_tuple = unsafe { ffi::PyTuple_Check(tuple) } != 0;
    // SAFETY: it is a tuple.
    if !is_tuple || unsafe { ffi::PyTuple_Size(tuple) } == 0 {
        return None;
    }
    // SAFETY: it is a tuple with at least one element. One that is being made may lack it.
    let first = unsafe { ffi::PyTuple_GetItem(tuple, 0) };
    (!first.is_null()).then_some(first)
}

/// Whether somebody is still filling a tuple. It holds what it has for a moment only, and is not to be
/// shown to Python: whoever reads a place that is empty ends the process.
pub(crate) fn is_being_made(tuple: *mut PyObject) -> bool {
    // SAFETY: it is alive.
    if unsafe { ffi::PyTuple_Check(tuple) } == 0 {
        return false;
    }
    // SAFETY: it is a tuple.
    let size = unsafe { ffi::PyTuple_Size(tuple) };
    // SAFETY: it is a tuple, and the place is less than its size.
    (0..size).any(|at| unsafe { ffi::PyTuple_GetItem(tuple, at) }.is_null())
}

/// Asks for the cache line at an address; on other processors than x86-64 they are left to themselves.
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this is a hint; it reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
