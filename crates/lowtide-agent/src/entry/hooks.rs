//! How the functions are written that the agent answers or notes itself, and what they share. Everything else is a
//! trampoline.
//!
//! Each has the driver's type. The driver's answer is the answer wherever the agent has none of its own.
#![allow(unsafe_code, reason = "stands in for the driver's functions")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use lowtide_types::Bytes;

use crate::driver::calls::current_context;
use crate::driver::codes::SUCCESS;
use crate::memory::allocations::Allocation;
use crate::memory::unmanaged::{self, Key, Kind};
use crate::obstacles::{self, Opened};
use crate::sleep::agent;
use crate::threads::uncancelled;

/// Defines functions of the driver, several of one type by one body. The body sees `real`, the driver's own
/// function. A touch is inside the gate for as long as the body runs, and a quiet call keeps the process from being
/// suspended. `takes(WANT)` are touches that wait for room, outside the gate, and run
/// again; where their thread is cancelled in the driver, they unwind. `answered` are those that
/// need neither.
macro_rules! hooks {
    () => {};
    (takes($want:expr) [$($name:ident)*] $arguments:tt |$real:ident| $body:expr; $($rest:tt)*) => {
        $(hooks!(@one "C-unwind" [takes($want)] $name $arguments $real $body);)*
        hooks!($($rest)*);
    };
    (takes($want:expr) $name:ident $arguments:tt |$real:ident| $body:expr; $($rest:tt)*) => {
        hooks!(@one "C-unwind" [takes($want)] $name $arguments $real $body);
        hooks!($($rest)*);
    };
    ($class:ident [$($name:ident)*] $arguments:tt |$real:ident| $body:expr; $($rest:tt)*) => {
        $(hooks!(@one "C" [$class] $name $arguments $real $body);)*
        hooks!($($rest)*);
    };
    ($class:ident $name:ident $arguments:tt |$real:ident| $body:expr; $($rest:tt)*) => {
        hooks!(@one "C" [$class] $name $arguments $real $body);
        hooks!($($rest)*);
    };
    (@one $abi:tt [$($class:tt)*] $name:ident ($($argument:ident: $kind:ty),*) $real:ident $body:expr) => {
        #[unsafe(no_mangle)]
        pub(super) unsafe extern $abi fn $name($($argument: $kind),*) -> i32 {
            let address = crate::driver::entries::ENTRIES[crate::driver::entries::row::$name].real();
            if address.is_null() {
                return crate::driver::codes::NOT_FOUND;
            }
            // SAFETY: the driver's function of this name has this type.
            let function: unsafe extern $abi fn($($kind),*) -> i32 = unsafe { std::mem::transmute(address) };
            // SAFETY: with the arguments that our caller meant for the driver.
            let $real = |$($argument: $kind),*| unsafe { function($($argument),*) };
            hooks!(@$($class)* $name $body)
        }
    };
    (@touch $name:ident $body:expr) => {
        match crate::gate::enter() {
            Ok(_pass) => $body,
            Err(code) => code,
        }
    };
    (@takes($want:expr) $name:ident $body:expr) => {
        crate::room::taking(stringify!($name), || $want, || $body)
    };
    (@quiet $name:ident $body:expr) => {
        match crate::gate::enter_quietly() {
            Ok(_pass) => $body,
            Err(code) => code,
        }
    };
    (@answered $name:ident $body:expr) => { $body };
}
pub(super) use hooks;

/// Runs code of the agent's; `None` if it panicked, after which the process does not sleep.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    let done = uncancelled(|| catch_unwind(AssertUnwindSafe(run)));
    if done.is_err() {
        obstacles::add_panic();
    }
    done.ok()
}

/// Writes a value where the caller of a function wants it, and returns the driver's code for that.
///
/// # Safety
/// The place is one for this value.
pub(super) unsafe fn write<T>(place: *mut T, value: T) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    SUCCESS
}

/// Returns whether an error of the pool is the driver's "out of memory".
pub(super) fn is_out_of_memory(error: &lowtide_pool::Error) -> bool {
    use lowtide_pool::Error;
    let has_no_place = matches!(error, Error::LargerThanDevice { .. } | Error::NoAddresses { .. });
    has_no_place || error.is_out_of_memory()
}

/// Returns the allocation of ours that an address is in, of this process or of another.
pub(super) fn around(at: u64) -> Option<Allocation> {
    let agent = agent::get()?;
    agent.memory.around(at).or_else(|| agent.imports.around(at))
}

/// Notes memory that stays on the device, if the driver gave some at `key`. Returns the driver's code.
///
/// # Safety
/// The driver has written the key, if its code says so.
pub(super) unsafe fn note_unmanaged(kind: Kind, key: *mut u64, bytes: usize, code: i32) -> i32 {
    if code == SUCCESS && !key.is_null() && agent::get().is_some() {
        // SAFETY: the caller's promise.
        let key = unsafe { *key };
        let context = current_context().unwrap_or_default();
        caught(|| unmanaged::add(kind, key, Bytes(bytes as u64), context));
    }
    code
}

/// Gives back memory that stays on the device, by a call of the driver. Where there is no agent nothing was noted, and
/// in a child another thread of the parent may have had the lock of the notes.
pub(super) fn give_back(key: Key, call: impl FnOnce() -> i32) -> i32 {
    if agent::get().is_some() { unmanaged::give_back(key, call) } else { call() }
}

/// Notes what the driver has opened for the program, if it has.
pub(super) fn opened(what: Opened, place: *mut u64, code: i32) -> i32 {
    if code == SUCCESS && !place.is_null() && agent::get().is_some() {
        // SAFETY: the driver has written it.
        obstacles::opened(what, unsafe { *place });
    }
    code
}

/// Notes that the program has closed something.
pub(super) fn closed(what: Opened, key: u64, code: i32) -> i32 {
    if code == SUCCESS && agent::get().is_some() {
        obstacles::closed(what, key);
    }
    code
}
