//! The driver's entry points, by their rows in `table/driver.tsv`. `build.rs` writes the list.
#![allow(non_upper_case_globals, reason = "the driver's names")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use crate::driver::library;

/// An entry point of the driver.
pub(crate) struct Entry {
    pub(crate) name: &'static CStr,
    /// The driver's function, once it was looked up.
    real: AtomicPtr<c_void>,
}

impl Entry {
    const fn new(name: &'static CStr) -> Entry {
        Entry { name, real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the driver's function; null if the driver has none, or is not loaded.
    #[inline]
    pub(crate) fn real(&self) -> *mut c_void {
        let real = self.real.load(Acquire);
        if real.is_null() { self.look_up() } else { real }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let real = library::look_up(self.name);
        self.real.store(real, Release);
        real
    }
}

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
