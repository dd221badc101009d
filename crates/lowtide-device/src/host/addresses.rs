//! The addresses of a `host` device: reserved without memory, opened, and bare again.
#![allow(unsafe_code, reason = "maps and protects addresses")]

use std::ptr;

use crate::facts::SizeRule;
use crate::{Address, Bytes, DeviceId, Error, Result};

/// The page of a `host` device.
pub(super) const PAGE: Bytes = Bytes::mib(2);

pub(super) fn reserve(size: Bytes) -> Result<Address> {
    let length = size.0.checked_add(PAGE.0).and_then(|length| usize::try_from(length).ok());
    let Some(length) = length else {
        let rule = SizeRule::AddressSpace;
        return Err(Error::BadSize { device: DeviceId::Host, operation: "reserve", size, rule });
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: fresh addresses of the kernel's choice, inaccessible; touches nothing of ours.
    let raw = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    if raw == libc::MAP_FAILED {
        return Err(Error::os("reserving addresses"));
    }
    let start = raw.addr();
    let base = start.next_multiple_of(PAGE.as_usize());
    let (before, after) = (base - start, start + length - base - size.as_usize());
    // The rest of the over-long mapping, on both sides.
    for (at, length) in [(start, before), (base + size.as_usize(), after)] {
        if length > 0 {
            // SAFETY: part of the mapping just made, outside what is handed out.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), length) };
        }
    }
    Ok(Address(base as u64))
}

pub(super) unsafe fn release(at: Address, size: Bytes) -> Result<()> {
    // SAFETY: the caller gives a whole reservation back, and nothing is mapped in it.
    let outcome = unsafe { libc::munmap(pointer(at), size.as_usize()) };
    check(outcome, "releasing addresses")
}

pub(super) unsafe fn open(at: Address, size: Bytes) -> Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller gives whole mappings of its own.
    let outcome = unsafe { libc::mprotect(pointer(at), size.as_usize(), protection) };
    check(outcome, "opening a mapping")
}

pub(super) unsafe fn unmap(at: Address, size: Bytes) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller gives whole mappings that no work uses. They become bare addresses at
    // one stroke, so that nobody else can be given them in between.
    let raw = unsafe { libc::mmap(pointer(at), size.as_usize(), libc::PROT_NONE, flags, -1, 0) };
    check(if raw == libc::MAP_FAILED { -1 } else { 0 }, "unmapping")
}

pub(super) fn pointer(at: Address) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).expect("an address of this process"))
}

pub(super) fn check(outcome: i32, operation: &'static str) -> Result<()> {
    if outcome == 0 { Ok(()) } else { Err(Error::os(operation)) }
}
