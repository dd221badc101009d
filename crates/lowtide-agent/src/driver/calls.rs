//! The driver's calls that the agent makes itself, past the functions that stand in for them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use lowtide_device::digest::Keys;
use lowtide_device::{Error, Result};
use lowtide_types::{Bytes, DeviceId};

use crate::driver::codes::{NOT_FOUND, SUCCESS};
use crate::driver::entries::{ENTRIES, row};
use crate::driver::layouts::{Access, Properties};

/// The size and the first address of a mapping: `CU_POINTER_ATTRIBUTE_MAPPING_SIZE`, `…_MAPPING_BASE_ADDR`.
const MAPPING_SIZE: usize = 18;
const MAPPING_BASE: usize = 19;
/// A way in which processes share memory: `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const BY_DESCRIPTOR: usize = 1;

/// Looks up functions that are called while the gate is closed, or while a call waits for room, so that nobody needs the loader's lock then: a
/// thread that waits at the gate may have it.
pub(crate) fn prepare() {
    let rows = [
        row::cuCtxGetCurrent,
        row::cuCtxGetDevice,
        row::cuCtxPopCurrent_v2,
        row::cuCtxPushCurrent_v2,
        row::cuCtxRecordEvent,
        row::cuDeviceGetDefaultMemPool,
        row::cuDeviceGetUuid_v2,
        row::cuDeviceTotalMem_v2,
        row::cuEventCreate,
        row::cuEventQuery,
        row::cuGetErrorName,
        row::cuMemMap,
        row::cuMemPoolTrimTo,
        row::cuMemSetAccess,
        row::cuMemUnmap,
    ];
    for row in rows {
        ENTRIES[row].real();
    }
    // Drawn by a function of the C library that is looked up first.
    Keys::of_this_process();
}

/// Calls a function of the driver that takes at most five words, and returns its code. The function ignores words
/// too many.
///
/// # Safety
/// The words are what the function takes; those that are pointers are valid for it.
pub(crate) unsafe fn call<const COUNT: usize>(row: usize, words: [usize; COUNT]) -> i32 {
    let real = ENTRIES[row].real();
    if real.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the driver's function; all that are called so take up to five words.
    let function: unsafe extern "C" fn(usize, usize, usize, usize, usize) -> i32 =
        unsafe { transmute(real) };
    let word = |number| words.get(number).copied().unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe { function(word(0), word(1), word(2), word(3), word(4)) }
}

/// Calls a function of the driver that writes a value, and returns the value, with zeros behind it. `words` gets the
/// place for it, which has room for a UUID, the largest: a variable that is too small would break the caller's stack.
///
/// # Errors
/// The driver's code.
///
/// # Safety
/// As for [`call`]; the value has at most 16 bytes.
pub(crate) unsafe fn value<const COUNT: usize>(
    row: usize,
    words: impl FnOnce(usize) -> [usize; COUNT],
) -> std::result::Result<u128, i32> {
    let mut value = 0_u128;
    // SAFETY: the caller's promise.
    match unsafe { call(row, words((&raw mut value).expose_provenance())) } {
        SUCCESS => Ok(value),
        code => Err(code),
    }
}

/// Returns the context that is current in this thread.
pub(crate) fn current_context() -> Option<usize> {
    context().ok().filter(|context| *context != 0)
}

/// Returns whether the driver says that no context is current in this thread.
pub(crate) fn has_no_context() -> bool {
    context() == Ok(0)
}

fn context() -> std::result::Result<usize, i32> {
    // SAFETY: writes one pointer.
    unsafe { value(row::cuCtxGetCurrent, |to| [to]) }.map(|context| context as usize)
}

/// Returns the device of the context that is current in this thread.
pub(crate) fn current_device() -> Option<DeviceId> {
    // SAFETY: writes one int, which is not negative.
    let device = unsafe { value(row::cuCtxGetDevice, |to| [to]) };
    device.ok().map(|device| DeviceId::Cuda(device as u32))
}

/// Returns the unused memory of the driver's own pool for a device, as far as no stream can still use it: all of it
/// where the gate is closed and nothing runs. A driver that refuses keeps its memory, which is no reason to stay awake.
pub(crate) fn trim_default_pool(device: DeviceId) {
    let DeviceId::Cuda(ordinal) = device else { return };
    // SAFETY: writes one handle.
    let pool = unsafe { value(row::cuDeviceGetDefaultMemPool, |to| [to, ordinal as usize]) };
    if let Ok(pool) = pool {
        // SAFETY: the handle that the driver gave.
        let _code = unsafe { call(row::cuMemPoolTrimTo, [pool as usize, 0]) };
    }
}

/// Creates memory with the properties that the program asked for.
pub(crate) fn create(device: DeviceId, bytes: Bytes, properties: &Properties) -> Result<u64> {
    let properties = ptr::from_ref(properties).expose_provenance();
    written(row::cuMemCreate, Some(device), |to| [to, bytes.as_usize(), properties])
}

/// Maps memory at an address.
pub(crate) fn map(at: u64, bytes: Bytes, handle: u64) -> Result<()> {
    checked(row::cuMemMap, None, [at as usize, bytes.as_usize(), 0, handle as usize])
}

/// Sets what devices may do with a mapping.
pub(crate) fn set_access(at: u64, bytes: Bytes, access: &[Access]) -> Result<()> {
    let list = access.as_ptr().expose_provenance();
    checked(row::cuMemSetAccess, None, [at as usize, bytes.as_usize(), list, access.len()])
}

/// Removes a mapping.
pub(crate) fn unmap(at: u64, bytes: Bytes) -> Result<()> {
    checked(row::cuMemUnmap, None, [at as usize, bytes.as_usize()])
}

/// Takes another reference to the handle that is mapped at an address.
pub(crate) fn retain(at: u64) -> Result<u64> {
    written(row::cuMemRetainAllocationHandle, None, |to| [to, at as usize])
}

/// Returns the first address and the size of the mapping that an address is in. Needs a context.
pub(crate) fn mapping(at: u64) -> Result<(u64, Bytes)> {
    let get =
        |attribute| written(row::cuPointerGetAttribute, None, |to| [to, attribute, at as usize]);
    Ok((get(MAPPING_BASE)?, Bytes(get(MAPPING_SIZE)?)))
}

/// Makes a context current in this thread, which is one of ours.
pub(crate) fn use_context(context: usize) -> Result<()> {
    checked(row::cuCtxSetCurrent, None, [context])
}

/// Returns a descriptor by which another process gets memory.
pub(crate) fn export(handle: u64) -> Result<OwnedFd> {
    let words = |to| [to, handle as usize, BY_DESCRIPTOR, 0];
    let descriptor = written(row::cuMemExportToShareableHandle, None, words)?;
    // SAFETY: the driver has opened it for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Takes memory of another process by its descriptor.
pub(crate) fn import(descriptor: &OwnedFd) -> Result<u64> {
    let descriptor = descriptor.as_raw_fd().cast_unsigned() as usize;
    let words = |to| [to, descriptor, BY_DESCRIPTOR];
    written(row::cuMemImportFromShareableHandle, None, words)
}

/// Reserves addresses.
pub(crate) fn reserve(bytes: Bytes) -> Result<u64> {
    written(row::cuMemAddressReserve, None, |to| [to, bytes.as_usize(), 0, 0, 0])
}

/// Gives addresses back.
pub(crate) fn free_addresses(at: u64, bytes: Bytes) -> Result<()> {
    checked(row::cuMemAddressFree, None, [at as usize, bytes.as_usize()])
}

/// Returns the whole memory of a device.
pub(crate) fn total(ordinal: u32) -> Option<Bytes> {
    // SAFETY: writes one word.
    let total = unsafe { value(row::cuDeviceTotalMem_v2, |to| [to, ordinal as usize]) };
    total.ok().map(|total| Bytes(total as u64))
}

/// Returns the UUID of a device.
pub(crate) fn uuid(ordinal: u32) -> Option<[u8; 16]> {
    // SAFETY: writes 16 bytes.
    let uuid = unsafe { value(row::cuDeviceGetUuid_v2, |to| [to, ordinal as usize]) };
    uuid.ok().map(u128::to_ne_bytes)
}

/// Drops a reference to memory.
pub(crate) fn release(handle: u64) -> Result<()> {
    checked(row::cuMemRelease, None, [handle as usize])
}

/// Calls a function about virtual memory. None of them needs a context.
fn checked<const COUNT: usize>(
    row: usize,
    device: Option<DeviceId>,
    words: [usize; COUNT],
) -> Result<()> {
    written(row, device, |_nothing| words).map(|_nothing| ())
}

/// The same for a function that writes a value.
fn written<const COUNT: usize>(
    row: usize,
    device: Option<DeviceId>,
    words: impl FnOnce(usize) -> [usize; COUNT],
) -> Result<u64> {
    // SAFETY: the functions above give each what it takes, and none writes more than a word.
    unsafe { value(row, words) }.map(|value| value as u64).map_err(|code| {
        let call = ENTRIES[row].name.to_str().unwrap_or_default();
        Error::Driver { device, call, code, name: name_of(code) }
    })
}

fn name_of(code: i32) -> String {
    let code = code.cast_unsigned() as usize;
    // SAFETY: writes one pointer.
    let name = unsafe { value(row::cuGetErrorName, |to| [code, to]) }.unwrap_or_default();
    let name = ptr::with_exposed_provenance::<c_char>(name as usize);
    if name.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: a C string of the driver's, which is never freed.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
