//! Functions of the driver that are not in the table: a newer driver has them, and nobody has decided
//! what they do.
//!
//! A call wakes the process, and from then on the process does not sleep: `status` gives the name. The
//! call is passed on untouched, whatever its arguments are.
#![allow(unsafe_code, reason = "passes calls on in assembly")]

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

use crate::{gate, obstacles};

/// The most functions of this kind; one more is handed out as it is, and the process never sleeps.
const MOST: usize = 64;

/// The driver's functions, by number.
static REAL: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];
static NAMES: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// Returns the function that passes calls on to a function of the driver.
pub(crate) fn function_for(name: &CStr, real: *mut c_void) -> *mut c_void {
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known =
        names.iter().zip(&REAL).position(|(one, at)| **one == *name && at.load(SeqCst) == real);
    let number = known.unwrap_or(names.len());
    if number == MOST {
        obstacles::add(&name.to_string_lossy());
        return real;
    }
    if known.is_none() {
        REAL[number].store(real, SeqCst);
        names.push(name.to_owned());
    }
    FUNCTIONS[number] as *mut c_void
}

/// Wakes the process and keeps it awake. The call that follows is not counted as inside: nobody closes
/// the gate any more.
extern "C" fn on_call(number: usize) {
    let names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = names.get(number).map(|name| name.to_string_lossy().into_owned());
    drop(names);
    obstacles::add(&name.unwrap_or_default());
    // Where there is no room, the driver answers for itself.
    drop(gate::enter());
}

/// Saves every register that may hold an argument, tells [`on_call`], and jumps to the driver's
/// function. The number is in r11.
#[unsafe(naked)]
unsafe extern "C" fn pass_on() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r11",
        "sub rsp, 128",
        "movdqu [rsp], xmm0",
        "movdqu [rsp + 16], xmm1",
        "movdqu [rsp + 32], xmm2",
        "movdqu [rsp + 48], xmm3",
        "movdqu [rsp + 64], xmm4",
        "movdqu [rsp + 80], xmm5",
        "movdqu [rsp + 96], xmm6",
        "movdqu [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {on_call}",
        "movdqu xmm0, [rsp]",
        "movdqu xmm1, [rsp + 16]",
        "movdqu xmm2, [rsp + 32]",
        "movdqu xmm3, [rsp + 48]",
        "movdqu xmm4, [rsp + 64]",
        "movdqu xmm5, [rsp + 80]",
        "movdqu xmm6, [rsp + 96]",
        "movdqu xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r11",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "lea r10, [rip + {real}]",
        "jmp qword ptr [r10 + r11 * 8]",
        on_call = sym on_call,
        real = sym REAL,
    )
}

/// Has the number that is its parameter.
#[unsafe(naked)]
unsafe extern "C" fn numbered<const NUMBER: usize>() {
    naked_asm!("mov r11d, {number}", "jmp {pass_on}", number = const NUMBER, pass_on = sym pass_on)
}

macro_rules! functions {
    ($($number:literal)*) => { [$(numbered::<$number>),*] };
}

static FUNCTIONS: [unsafe extern "C" fn(); MOST] = functions!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);
