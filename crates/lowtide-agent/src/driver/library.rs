//! The library of the driver that the program has loaded, and the C library's own `dlsym` to look into it.
#![allow(unsafe_code, reason = "looks functions up")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The name under which programs load the driver.
const DRIVER: &CStr = c"libcuda.so.1";

/// The C library's `dlsym`, once it was looked up.
pub(crate) static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Returns the C library's `dlsym`. It was given a new version in glibc 2.34.
pub(crate) extern "C" fn find_real_dlsym() -> *mut c_void {
    let known = REAL_DLSYM.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let versions = [c"GLIBC_2.2.5", c"GLIBC_2.34"];
    let found = versions.into_iter().find_map(|version| {
        // SAFETY: C strings; looks behind this library.
        let found = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    let Some(found) = found else {
        // No program can have got here: the C library has one of the two.
        std::process::abort();
    };
    REAL_DLSYM.store(found, Relaxed);
    found
}

/// Calls the C library's `dlsym`.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    call(find_real_dlsym(), handle, name)
}

/// Calls a `dlsym`.
fn call(dlsym: *mut c_void, handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a function of this name, and so of this type.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(dlsym) };
    // SAFETY: a C string and a handle of the caller's.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// Returns whether the first `dlsym` of the program is somebody else's that leads past the agent's functions: calls
/// that the program finds by it do not pass the gate.
pub(crate) fn is_passed_by() -> bool {
    let (first, name) = (look_up_anywhere(c"dlsym"), c"cuInit");
    !first.is_null() && call(first, driver(), name) == look_up(name)
}

/// Looks a function of the driver up; null if it has none, or if the program has not loaded the driver.
pub(crate) fn look_up(name: &CStr) -> *mut c_void {
    let driver = driver();
    if driver.is_null() { ptr::null_mut() } else { real_dlsym(driver, name) }
}

/// Looks a function up that may be anywhere in the program.
pub(crate) fn look_up_anywhere(name: &CStr) -> *mut c_void {
    real_dlsym(libc::RTLD_DEFAULT, name)
}

/// Returns the loader's handle of the driver; null if the program has not loaded it.
fn driver() -> *mut c_void {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let known = HANDLE.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let loaded_already: c_int = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a C string; loads nothing.
    let handle = unsafe { libc::dlopen(DRIVER.as_ptr(), loaded_already) };
    HANDLE.store(handle, Relaxed);
    handle
}
