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

/// The C library's `dlopen`, once it was looked up.
pub(crate) static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns the C library's `dlsym`.
pub(crate) extern "C" fn find_real_dlsym() -> *mut c_void {
    find_real(&REAL_DLSYM, c"dlsym")
}

/// Finds a function of the C library that stands behind one of this library. Such were given a new version in glibc 2.34.
pub(crate) fn find_real(at: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = at.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let versions = [c"GLIBC_2.2.5", c"GLIBC_2.34"];
    let found = versions.into_iter().find_map(|version| {
        // SAFETY: C strings; looks behind this library.
        let found = unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    let Some(found) = found else {
        // No program can have got here: the C library has one of the two.
        std::process::abort();
    };
    at.store(found, Relaxed);
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

/// Returns whether a library is loaded that may look for functions of the driver itself: by their names, those of the
/// CUDA runtime, or `dlsym`.
pub(crate) fn seeks_driver(path: &CStr) -> bool {
    /// The beginning of the loader's structure, and of an entry of a library's dynamic section.
    #[repr(C)]
    struct LinkMap(usize, *const c_char, *const [usize; 2]);
    const STRINGS: usize = 5;
    const SIZE: usize = 10;
    // SAFETY: a C string; loads nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return false;
    }
    // SAFETY: the handle of a library that is loaded is its structure, in every glibc.
    let mut entry = unsafe { (*library.cast::<LinkMap>()).2 };
    let (mut at, mut size) = (0, 0);
    loop {
        // SAFETY: the dynamic section ends with an entry of zeros.
        let [kind, value] = unsafe { *entry };
        match kind {
            0 => break,
            STRINGS => at = value,
            SIZE => size = value,
            _ => {}
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: the loader has put the address of the names there.
    let names = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(at), size) };
    let is_way = |name: &[u8]| {
        let rest = name.strip_prefix(b"cuda").or(name.strip_prefix(b"cu")).unwrap_or_default();
        rest.first().is_some_and(u8::is_ascii_uppercase) || matches!(name, b"dlsym" | b"dlvsym")
    };
    let found = at != 0 && names.split(|byte| *byte == 0).any(is_way);
    // SAFETY: takes back what this function took.
    unsafe { libc::dlclose(library) };
    found
}

/// Looks a function of the driver up; null if it has none, or if the program has not loaded the driver.
pub(crate) fn look_up(name: &CStr) -> *mut c_void {
    let driver = driver();
    if driver.is_null() { ptr::null_mut() } else { real_dlsym(driver, name) }
}

/// Returns whether the program has loaded the driver.
pub(crate) fn is_loaded() -> bool {
    !driver().is_null()
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
