//! How a program finds the driver's functions, and is given ours.
//!
//! It finds them by linking the driver (our exported functions come first), by `dlsym` or by asking the driver
//! itself (`cuGetProcAddress`); both are here. The CUDA runtime uses the last two.
//!
//! `dlsym` is written in assembly. The C library resolves `RTLD_NEXT` by its caller's address, so for
//! every name that is not the driver's our `dlsym` has to jump, not call.
#![allow(unsafe_code, reason = "looks functions up and hands them out")]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::wildcard_imports, reason = "the list of our functions names all of them")]

use std::arch::naked_asm;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::allocations::*;
use super::contexts::*;
use super::handles::*;
use super::hooks::{caught, hooks};
use super::numbers::*;
use super::pointers::*;
use super::sharing::*;
use super::trampolines::*;
use super::unknown;
use crate::driver::codes::SUCCESS;
use crate::driver::entries::ENTRIES;
use crate::driver::library::{self, REAL_DLOPEN, REAL_DLSYM, find_real_dlsym};
use crate::{obstacles, settings};

/// The address of one of our functions.
struct Function(*const ());

// SAFETY: the address of code.
unsafe impl Sync for Function {}

include!(concat!(env!("OUT_DIR"), "/ours.rs"));

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
        find_real = sym find_real_dlsym,
    )
}

/// Stands in for the C library's `dlopen`: notes libraries that would not find our functions, and jumps to the real one,
/// which looks at its caller, too.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "test esi, {deep}",
        "jnz 2f",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        deep = const libc::RTLD_DEEPBIND,
        real = sym REAL_DLOPEN,
        before = sym before_dlopen,
    )
}

/// Notes what is loaded, and returns the C library's `dlopen`.
extern "C" fn before_dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    if flags & libc::RTLD_DEEPBIND != 0 && flags & libc::RTLD_NOLOAD == 0 && !path.is_null() {
        // SAFETY: the caller's C string.
        obstacles::loads_deep(unsafe { CStr::from_ptr(path) });
    }
    library::find_real(&REAL_DLOPEN, c"dlopen")
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
    let real = library::real_dlsym(scope, name);
    Answer::of(if settings::is_off() { real } else { ours_for(name, real) })
}

/// Returns our function for one of the driver's; the function itself where it is not the driver's.
fn ours_for(name: &CStr, real: *mut c_void) -> *mut c_void {
    static ROWS: OnceLock<HashMap<usize, usize>> = OnceLock::new();
    // A program may find another library's function of such a name before it loads the driver.
    if real.is_null() || !library::is_loaded() {
        return real;
    }
    let rows = ROWS.get_or_init(|| {
        let rows = ENTRIES.iter().enumerate().map(|(row, entry)| (entry.real().addr(), row));
        rows.filter(|(address, _)| *address != 0).collect()
    });
    match rows.get(&real.addr()) {
        Some(row) => OURS[*row].0.cast_mut().cast(),
        // Another library may use such a name for something else.
        None if library::look_up(name) == real => unknown::function_for(name, real),
        None => real,
    }
}

hooks! {
    // What the driver itself says about where its functions are; the CUDA runtime asks for each.
    answered cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: i32, flags: u64) |real| {
        let code = real(name, function, version, flags);
        // SAFETY: the arguments of this very function, and the driver's answer.
        unsafe { substitute(name, function, code) };
        code
    };
    answered cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: i32, flags: u64, status: *mut i32
    ) |real| {
        let code = real(name, function, version, flags, status);
        // SAFETY: the arguments of this very function, and the driver's answer.
        unsafe { substitute(name, function, code) };
        code
    };
}

/// Replaces a function of the driver by ours.
///
/// # Safety
/// The arguments are those of `cuGetProcAddress`, and `code` is its answer.
unsafe fn substitute(name: *const c_char, function: *mut *mut c_void, code: i32) {
    if code != SUCCESS || name.is_null() || function.is_null() || settings::is_off() {
        return;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as above; the driver has written it.
    let real = unsafe { function.read() };
    let ours = caught(|| ours_for(name, real)).unwrap_or(real);
    // SAFETY: the caller's promise.
    unsafe { function.write(ours) };
}
