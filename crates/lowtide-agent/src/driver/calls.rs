//! The driver's calls about virtual memory, past the hooks. None of them needs a context.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::ptr;

use lowtide_device::{Error, Result};
use lowtide_types::{Bytes, DeviceId};

use super::properties::{Access, Properties};
use crate::entry::trampolines::{ENTRIES, row};

/// The driver's code for a function that it does not have.
const NOT_FOUND: i32 = 500;

/// Looks the functions up, so that nobody needs the loader while the gate is closed.
pub(crate) fn prepare() {
    for row in [row::cuMemMap, row::cuMemSetAccess, row::cuMemUnmap, row::cuGetErrorName] {
        ENTRIES[row].real();
    }
}

pub(crate) fn create(device: DeviceId, bytes: Bytes, properties: &Properties) -> Result<u64> {
    let mut handle = 0_u64;
    let place = (&raw mut handle).addr();
    let arguments = [place, bytes.as_usize(), ptr::from_ref(properties).addr(), 0, 0];
    call(row::cuMemCreate, "cuMemCreate", Some(device), arguments).map(|()| handle)
}

pub(crate) fn map(at: u64, bytes: Bytes, handle: u64) -> Result<()> {
    let arguments = [at as usize, bytes.as_usize(), 0, handle as usize, 0];
    call(row::cuMemMap, "cuMemMap", None, arguments)
}

pub(crate) fn set_access(at: u64, bytes: Bytes, access: &[Access]) -> Result<()> {
    let (list, count) = (access.as_ptr().addr(), access.len());
    call(
        row::cuMemSetAccess,
        "cuMemSetAccess",
        None,
        [at as usize, bytes.as_usize(), list, count, 0],
    )
}

pub(crate) fn unmap(at: u64, bytes: Bytes) -> Result<()> {
    call(row::cuMemUnmap, "cuMemUnmap", None, [at as usize, bytes.as_usize(), 0, 0, 0])
}

/// Takes another reference to the handle that is mapped at an address.
pub(crate) fn retain(at: u64) -> Result<u64> {
    let mut handle = 0_u64;
    let arguments = [(&raw mut handle).addr(), at as usize, 0, 0, 0];
    call(row::cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", None, arguments)
        .map(|()| handle)
}

pub(crate) fn release(handle: u64) -> Result<()> {
    call(row::cuMemRelease, "cuMemRelease", None, [handle as usize, 0, 0, 0, 0])
}

/// Calls a function of the driver that takes at most five words. It ignores words too many.
fn call(
    row: usize,
    call: &'static str,
    device: Option<DeviceId>,
    arguments: [usize; 5],
) -> Result<()> {
    let real = ENTRIES[row].real();
    let code = if real.is_null() {
        NOT_FOUND
    } else {
        // SAFETY: the driver's function; all that are called here take up to five words.
        let function: unsafe extern "C" fn(usize, usize, usize, usize, usize) -> i32 =
            unsafe { transmute(real) };
        let [first, second, third, fourth, fifth] = arguments;
        // SAFETY: the words are what the function takes; pointers are to memory of the caller.
        unsafe { function(first, second, third, fourth, fifth) }
    };
    if code == 0 { Ok(()) } else { Err(Error::Driver { device, call, code, name: name_of(code) }) }
}

fn name_of(code: i32) -> String {
    let real = ENTRIES[row::cuGetErrorName].real();
    let mut name = ptr::null::<c_char>();
    if !real.is_null() {
        // SAFETY: the driver's function of this name has this type.
        let get: unsafe extern "C" fn(i32, *mut *const c_char) -> i32 = unsafe { transmute(real) };
        // SAFETY: writes one pointer.
        unsafe { get(code, &raw mut name) };
    }
    if name.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: a C string of the driver's, which is never freed.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
