//! How an exported name is entered.
//!
//! Every exported function is written with [`entry!`], so that counting, injected faults, the
//! checkpoint gate, the capture rules and the catching of panics are each done in one place and in
//! one order.
#![allow(unsafe_code, reason = "asks the loader where this library is")]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::pointers::CallResult;
use super::{capture_rules, code, faults, gate, machine};

/// Names that work before `cuInit`.
const BEFORE_INIT: &[&str] =
    &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetProcAddress_v2"];

/// Defines exported entries. The body is a block of type [`CallResult`].
macro_rules! entry {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[allow(unsafe_code, non_snake_case, reason = "exported under the driver's own name")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::double::entry::call(stringify!($name), || $body)
        }
    )*};
}
pub(super) use entry;

/// Runs one entry: count, injected fault, `cuInit` seen, capture rule, gate, body.
pub(super) fn call(name: &'static str, body: impl FnOnce() -> CallResult) -> i32 {
    let run = || -> CallResult {
        start();
        faults::on_call(name)?;
        if name.starts_with("cu") && !BEFORE_INIT.contains(&name) && machine::get().mine().is_none()
        {
            return Err(code::NOT_INITIALIZED);
        }
        capture_rules::on_call(name)?;
        let _inside = gate::enter(name);
        body()
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::UNKNOWN,
    }
}

/// Brings the double up: once, before anything else of it runs.
pub(super) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        stay_loaded();
        faults::configure_from_environment();
    });
}

/// Keeps this library loaded for good: streams run on threads of it. A `dlclose` by its user only
/// drops a reference.
fn stay_loaded() {
    // SAFETY: a structure of pointers, for which null is a value.
    let mut here: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is of a function in this object and `here` is ours to fill.
    let found = unsafe { libc::dladdr(stay_loaded as *const c_void, &raw mut here) };
    if found != 0 {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: dladdr succeeded, so the name is a string the loader keeps.
        unsafe { libc::dlopen(here.dli_fname, flags) };
    }
}
