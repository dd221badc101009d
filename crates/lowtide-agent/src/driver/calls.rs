//! The driver's calls that the agent makes itself, past the functions that stand in for them.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

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

/// Looks up functions that are called while the gate is closed, so that nobody needs the loader's lock then: a
/// thread that waits at the gate may have it.
pub(crate) fn prepare() {
    let rows = [
        row::cuCtxPushCurrent_v2,
        row::cuCtxPopCurrent_v2,
        row::cuCtxRecordEvent,
        row::cuDeviceGetDefaultMemPool,
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

/// Returns the address of a variable that the driver writes.
pub(crate) fn place<T>(variable: &mut T) -> usize {
    ptr::from_mut(variable).expose_provenance()
}

/// Returns the context that is current in this thread.
pub(crate) fn current_context() -> Option<usize> {
    let mut context = 0;
    // SAFETY: writes one pointer.
    let code = unsafe { call(row::cuCtxGetCurrent, [place(&mut context)]) };
    (code == SUCCESS && context != 0).then_some(context)
}

/// Returns whether the driver says that no context is current in this thread.
pub(crate) fn has_no_context() -> bool {
    let mut context = 0;
    // SAFETY: writes one pointer.
    let code = unsafe { call(row::cuCtxGetCurrent, [place(&mut context)]) };
    code == SUCCESS && context == 0
}

/// Returns the device of the context that is current in this thread.
pub(crate) fn current_device() -> Option<DeviceId> {
    let mut device = -1_i32;
    // SAFETY: writes one int.
    let code = unsafe { call(row::cuCtxGetDevice, [place(&mut device)]) };
    u32::try_from(device).ok().filter(|_| code == SUCCESS).map(DeviceId::Cuda)
}

/// Returns the unused memory of the driver's own pool for a device. The gate is closed and nothing runs there, so no
/// stream can still use it. A driver that refuses keeps its memory, which is no reason to stay awake.
pub(crate) fn trim_default_pool(device: DeviceId) {
    let DeviceId::Cuda(ordinal) = device else { return };
    let mut pool = 0_usize;
    // SAFETY: writes one handle.
    let code =
        unsafe { call(row::cuDeviceGetDefaultMemPool, [place(&mut pool), ordinal as usize]) };
    if code == SUCCESS {
        // SAFETY: the handle that the driver gave.
        let _code = unsafe { call(row::cuMemPoolTrimTo, [pool, 0]) };
    }
}

/// Creates memory with the properties that the program asked for.
pub(crate) fn create(device: DeviceId, bytes: Bytes, properties: &Properties) -> Result<u64> {
    let mut handle = 0_u64;
    let words =
        [place(&mut handle), bytes.as_usize(), ptr::from_ref(properties).expose_provenance()];
    checked(row::cuMemCreate, Some(device), words).map(|()| handle)
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
    let mut handle = 0_u64;
    let words = [place(&mut handle), at as usize];
    checked(row::cuMemRetainAllocationHandle, None, words).map(|()| handle)
}

/// Returns the first address and the size of the mapping that an address is in. Needs a context.
pub(crate) fn mapping(at: u64) -> Result<(u64, Bytes)> {
    let (mut base, mut bytes) = (0_u64, 0_u64);
    let words = [place(&mut base), MAPPING_BASE, at as usize];
    checked(row::cuPointerGetAttribute, None, words)?;
    let words = [place(&mut bytes), MAPPING_SIZE, at as usize];
    checked(row::cuPointerGetAttribute, None, words).map(|()| (base, Bytes(bytes)))
}

/// Makes a context current in this thread, which is one of ours.
pub(crate) fn use_context(context: usize) -> Result<()> {
    checked(row::cuCtxSetCurrent, None, [context])
}

/// Returns a descriptor by which another process gets memory.
pub(crate) fn export(handle: u64) -> Result<OwnedFd> {
    let mut descriptor: i32 = -1;
    let words = [place(&mut descriptor), handle as usize, BY_DESCRIPTOR, 0];
    checked(row::cuMemExportToShareableHandle, None, words)?;
    // SAFETY: the driver has opened it for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Takes memory of another process by its descriptor.
pub(crate) fn import(descriptor: &OwnedFd) -> Result<u64> {
    let (mut handle, descriptor) = (0_u64, descriptor.as_raw_fd().cast_unsigned() as usize);
    let words = [place(&mut handle), descriptor, BY_DESCRIPTOR];
    checked(row::cuMemImportFromShareableHandle, None, words).map(|()| handle)
}

/// Reserves addresses.
pub(crate) fn reserve(bytes: Bytes) -> Result<u64> {
    let mut at = 0_u64;
    let words = [place(&mut at), bytes.as_usize(), 0, 0, 0];
    checked(row::cuMemAddressReserve, None, words).map(|()| at)
}

/// Gives addresses back.
pub(crate) fn free_addresses(at: u64, bytes: Bytes) -> Result<()> {
    checked(row::cuMemAddressFree, None, [at as usize, bytes.as_usize()])
}

/// Returns the UUID of a device.
pub(crate) fn uuid(ordinal: u32) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    let words = [place(&mut uuid), ordinal as usize];
    checked(row::cuDeviceGetUuid_v2, None, words).ok().map(|()| uuid)
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
    // SAFETY: the functions above give each what it takes; pointers are to variables of theirs.
    match unsafe { call(row, words) } {
        SUCCESS => Ok(()),
        code => {
            let call = ENTRIES[row].name.to_str().unwrap_or_default();
            Err(Error::Driver { device, call, code, name: name_of(code) })
        }
    }
}

fn name_of(code: i32) -> String {
    let mut name = ptr::null::<c_char>();
    // SAFETY: writes one pointer.
    unsafe { call(row::cuGetErrorName, [code.cast_unsigned() as usize, place(&mut name)]) };
    if name.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: a C string of the driver's, which is never freed.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
