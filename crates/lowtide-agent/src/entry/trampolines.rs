//! A function of ours for each function of the driver.
//!
//! `build.rs` writes the list and the functions from `table/driver.tsv`. A function passes its arguments
//! on as they came: a word is an integer, an enum, a handle or a pointer, which the calling convention
//! treats alike.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, non_upper_case_globals, reason = "the driver's names")]

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use crate::entry::lookup as loader;
use crate::gate;

/// The driver's code for a function that it does not have.
const NOT_FOUND: i32 = 500;
const SUCCESS: i32 = 0;

/// A structure that the driver takes by value: the handle of memory or of an event of another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Structure([u64; 8]);

/// An entry point of the driver.
pub(crate) struct Entry {
    pub(crate) name: &'static CStr,
    /// Our function.
    ours: Function,
    /// The driver's function, once it was looked up.
    real: AtomicPtr<c_void>,
}

/// The address of a function.
#[derive(Clone, Copy)]
struct Function(*const ());

// SAFETY: the address of code.
unsafe impl Sync for Function {}

impl Entry {
    const fn new(name: &'static CStr, ours: *const ()) -> Entry {
        Entry { name, ours: Function(ours), real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns our function.
    pub(crate) fn ours(&self) -> *mut c_void {
        self.ours.0.cast_mut().cast()
    }

    /// Returns the driver's function; null if the driver has none, or is not loaded.
    #[inline]
    pub(crate) fn real(&self) -> *mut c_void {
        let real = self.real.load(Acquire);
        if real.is_null() { self.look_up() } else { real }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let real = loader::look_up(self.name);
        self.real.store(real, Release);
        real
    }
}

/// Returns the entry of a function of the driver, by the function's address.
pub(crate) fn by_address(real: *mut c_void) -> Option<&'static Entry> {
    static BY_ADDRESS: OnceLock<HashMap<usize, usize>> = OnceLock::new();
    let rows = BY_ADDRESS.get_or_init(|| {
        let rows = ENTRIES.iter().enumerate().map(|(row, entry)| (entry.real().addr(), row));
        rows.filter(|(address, _)| *address != 0).collect()
    });
    rows.get(&real.addr()).map(|row| &ENTRIES[*row])
}

/// Writes a function that passes its call on: a touch through the gate, a call that a suspended process does
/// not answer beside it, and anything else at once. In a suspended process no work is left to wait for.
macro_rules! trampoline {
    (touch $name:ident $row:literal $arguments:tt) => {
        trampoline!(@write $name $row $arguments gate::enter());
    };
    (quiet $name:ident $row:literal $arguments:tt) => {
        trampoline!(@write $name $row $arguments gate::enter_quietly());
    };
    (done $name:ident $row:literal $arguments:tt) => {
        trampoline!(@write $name $row $arguments gate::try_enter_quietly().ok_or(SUCCESS));
    };
    (answered $name:ident $row:literal $arguments:tt) => {
        trampoline!(@write $name $row $arguments Ok::<(), i32>(()));
    };
    (@write $name:ident $row:literal ($($argument:ident: $kind:ty),*) $enter:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
            let real = ENTRIES[$row].real();
            if real.is_null() {
                return NOT_FOUND;
            }
            match $enter {
                // SAFETY: the driver's function of this name, called as our caller called it.
                Ok(_pass) => unsafe {
                    (std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> i32>(real))(
                        $($argument),*
                    )
                },
                Err(code) => code,
            }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
