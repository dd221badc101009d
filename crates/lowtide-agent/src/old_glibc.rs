//! Functions that the C library has only since a version newer than glibc 2.17, written here, so that the
//! agent can be loaded into programs on older machines. They are seen inside this library only.
//!
//! `table/older.tsv` binds the rest to older versions.
#![allow(unsafe_code, reason = "stands in for functions of the C library")]

use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::ptr;

// Up to glibc 2.32 these were in each program itself. The kernel's structure is the C library's.
global_asm!(
    ".text",
    ".hidden stat64",
    ".globl stat64",
    ".type stat64, @function",
    "stat64:",
    "mov eax, 4",
    "jmp {call}",
    ".hidden fstat64",
    ".globl fstat64",
    ".type fstat64, @function",
    "fstat64:",
    "mov eax, 5",
    "jmp {call}",
    ".hidden lstat64",
    ".globl lstat64",
    ".type lstat64, @function",
    "lstat64:",
    "mov eax, 6",
    "jmp {call}",
    // libgcc asks it where the tables of a function are; without it no panic could be caught.
    ".hidden _dl_find_object",
    ".globl _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object:",
    "jmp {find_object}",
    call = sym call,
    find_object = sym find_object,
);

/// Makes the system call whose number is in eax, with two arguments, and sets `errno`.
#[unsafe(naked)]
unsafe extern "C" fn call() {
    std::arch::naked_asm!(
        "mov rdx, rsi",
        "mov rsi, rdi",
        "mov edi, eax",
        "xor eax, eax",
        "jmp {syscall}",
        syscall = sym libc::syscall,
    )
}

/// The answer of `_dl_find_object`: `struct dl_find_object` of `dlfcn.h`.
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    map: *mut c_void,
    tables: *mut c_void,
    reserved: [u64; 7],
}

/// Finds the library that an address is in; 0 if there is one, and it has tables for unwinding.
unsafe extern "C" fn find_object(address: *mut c_void, found: *mut Found) -> c_int {
    let mut search = Search { address: address.addr() as u64, found: None };
    // SAFETY: `look` gets the pointer that is passed here, and `search` lives until it returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    let Some((start, end, tables)) = search.found else { return -1 };
    let at = |address: u64| ptr::with_exposed_provenance_mut(address as usize);
    let answer = Found {
        flags: 0,
        start: at(start),
        end: at(end),
        map: ptr::null_mut(),
        tables: at(tables),
        reserved: [0; 7],
    };
    // SAFETY: the caller's place for an answer.
    unsafe { found.write(answer) };
    0
}

struct Search {
    address: u64,
    /// The library's first address, its end, and its tables.
    found: Option<(u64, u64, u64)>,
}

unsafe extern "C" fn look(
    library: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader's description, for the time of this call.
    let library = unsafe { &*library };
    // SAFETY: what `find_object` passed.
    let search = unsafe { &mut *search.cast::<Search>() };
    let count = usize::from(library.dlpi_phnum);
    // SAFETY: the loader's list of so many segments.
    let segments = unsafe { std::slice::from_raw_parts(library.dlpi_phdr, count) };
    let base = library.dlpi_addr;
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let around = loaded
        .map(|segment| (base + segment.p_vaddr, base + segment.p_vaddr + segment.p_memsz))
        .find(|(start, end)| (*start..*end).contains(&search.address));
    let tables = segments.iter().find(|segment| segment.p_type == libc::PT_GNU_EH_FRAME);
    match (around, tables) {
        (Some((start, end)), Some(tables)) => {
            search.found = Some((start, end, base + tables.p_vaddr));
            1
        }
        _ => 0,
    }
}
