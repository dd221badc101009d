//! How calls come to us, and where the driver is.
//!
//! A program finds the driver's functions by linking it (our exported functions come first), by `dlsym`
//! (ours, below) or by asking the driver itself (`cuGetProcAddress`, in `hooks.rs`). The CUDA runtime
//! uses the last two.
//!
//! `dlsym` is written in assembly. The C library resolves `RTLD_NEXT` by its caller's address, so for
//! every name that is not the driver's our `dlsym` has to jump, not call.
#![allow(unsafe_code, reason = "looks functions up and hands them out")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::entry::{trampolines as entries, unknown};
use crate::sleep::agent;

/// The name under which programs load the driver.
const DRIVER: &CStr = c"libcuda.so.1";

/// The C library's `dlsym`, once it was looked up.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands in for the C library's `dlsym`: answers for the driver's names, and jumps to the real one
/// with every other, so that its caller stays its caller.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        // Not the driver's: anything but `cu` and an upper-case letter.
        "test rsi, rsi",
        "jz 2f",
        "cmp byte ptr [rsi], 'c'",
        "jne 2f",
        "cmp byte ptr [rsi + 1], 'u'",
        "jne 2f",
        "movzx eax, byte ptr [rsi + 2]",
        "sub eax, 'A'",
        "cmp eax, 25",
        "ja 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {of_driver}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "jz 2f",
        "ret",
        "2:",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 3f",
        "jmp rax",
        "3:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find_real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        of_driver = sym of_driver,
        real = sym REAL_DLSYM,
        find_real = sym find_real,
    )
}

/// Returns the C library's `dlsym`. It was given a new version in glibc 2.34.
extern "C" fn find_real() -> *mut c_void {
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

fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the C library's function of this type.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(find_real()) };
    // SAFETY: a C string and a handle of the caller's.
    unsafe { real(handle, name.as_ptr()) }
}

/// What `dlsym` says of a name.
#[repr(C)]
struct Answer {
    function: *mut c_void,
    /// Zero to let the C library answer.
    is_final: usize,
}

impl Answer {
    fn of(function: *mut c_void) -> Answer {
        Answer { function, is_final: 1 }
    }
}

/// Answers for a name that looks like the driver's.
extern "C" fn of_driver(handle: *mut c_void, name: *const c_char) -> Answer {
    // Its answer depends on who asks.
    if handle == libc::RTLD_NEXT {
        return Answer { function: ptr::null_mut(), is_final: 0 };
    }
    // SAFETY: the caller's C string, which `dlsym` has looked into.
    let name = unsafe { CStr::from_ptr(name) };
    // Everybody's scope would find our own functions also where there is no driver.
    let scope = if handle == libc::RTLD_DEFAULT { libc::RTLD_NEXT } else { handle };
    let real = real_dlsym(scope, name);
    Answer::of(if agent::is_off() { real } else { ours_for(name, real) })
}

/// Returns our function for one of the driver's; the function itself where it is not the driver's.
pub(crate) fn ours_for(name: &CStr, real: *mut c_void) -> *mut c_void {
    if real.is_null() {
        return real;
    }
    match entries::by_address(real) {
        Some(entry) => entry.ours(),
        // Another library may use such a name for something else.
        None if look_up(name) == real => unknown::function_for(name, real),
        None => real,
    }
}

/// Looks a function of the driver up, if the program has loaded the driver.
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
