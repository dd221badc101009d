//! The functions that pass a call on to the driver. `build.rs` writes them from `table/driver.tsv`.
//!
//! A function passes its arguments on as they came: a word is an integer, an enum, a handle or a pointer, which the
//! calling convention treats alike. Only a handle of virtual memory becomes the driver's.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::c_void;

use crate::driver::codes::{INVALID_VALUE, NOT_FOUND, SUCCESS};
use crate::driver::entries::ENTRIES;
use crate::room::{self, Want};
use crate::sleep::agent;
use crate::{gate, obstacles};

/// Writes a function that passes its call on: a touch through the gate, a call that a suspended process does
/// not answer beside it, and anything else at once. In a suspended process no work is left to wait for. A touch that
/// takes memory is made again once there is room; where its thread is cancelled in the driver, it unwinds to here.
macro_rules! trampoline {
    (touch $($rest:tt)*) => {
        trampoline!(@write "C" $($rest)* |call| match gate::enter() {
            Ok(_pass) => call!(),
            Err(code) => code,
        });
    };
    (takes $name:ident $($rest:tt)*) => {
        trampoline!(@write "C-unwind" $name $($rest)* |call| {
            room::taking(stringify!($name), Want::default, || call!())
        });
    };
    (quiet $($rest:tt)*) => {
        trampoline!(@write "C" $($rest)* |call| match gate::enter_quietly() {
            Ok(_pass) => call!(),
            Err(code) => code,
        });
    };
    (done $($rest:tt)*) => {
        trampoline!(@write "C" $($rest)* |call| match gate::try_enter_quietly() {
            Some(_pass) => call!(),
            None => SUCCESS,
        });
    };
    (answered $($rest:tt)*) => {
        trampoline!(@write "C" $($rest)* |call| call!());
    };
    (@write $abi:tt $name:ident $row:literal ($($argument:ident: $kind:ty,)*) { $($before:tt)* } [$($obstacle:literal)?] |$call:ident| $way:expr) => {
        #[unsafe(no_mangle)]
        pub(super) unsafe extern $abi fn $name($($argument: $kind),*) -> i32 {
            type Real = unsafe extern $abi fn($($kind),*) -> i32;
            let real = ENTRIES[$row].real();
            if real.is_null() {
                return NOT_FOUND;
            }
            macro_rules! $call {
                () => {{
                    $($before)*
                    // SAFETY: the driver's function of this name has this type.
                    let function = unsafe { std::mem::transmute::<*mut c_void, Real>(real) };
                    // SAFETY: called as our caller called it.
                    let code = unsafe { function($($argument),*) };
                    $(if code == SUCCESS { obstacles::add($obstacle); })?
                    code
                }};
            }
            $way
        }
    };
}

/// Gives the driver's handle for a handle of virtual memory that the program passes.
macro_rules! real_handle {
    ($handle:ident) => {
        match real_handle($handle as u64) {
            Some(real) => real as usize,
            None => return INVALID_VALUE,
        }
    };
}

/// Returns the driver's handle for a handle of the program; `None` if it has no memory.
pub(super) fn real_handle(handle: u64) -> Option<u64> {
    agent::get().map_or(Some(handle), |agent| agent.virtual_memory.real(handle))
}

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
