//! The driver itself and its devices: what there is, without a context.

use std::ffi::{CStr, c_char};

use super::code::{self, INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY};
use super::entry::entry;
use super::machine;
use super::pointers::{CallResult, Out};
use super::tables::to_usize;

/// The double's name for itself, wherever a name is asked for.
const NAME: &str = "lowtide driver double (a test tool, no GPU)";
/// The CUDA version that the double stands in for.
const CUDA_VERSION: i32 = 13_000;

/// Checks a device and returns its index.
pub(super) fn index(device: i32) -> CallResult<usize> {
    let index = usize::try_from(device).ok();
    index.filter(|index| *index < machine::get().devices()).ok_or(INVALID_DEVICE)
}

/// Returns the UUID of a device: the same in every process, as a GPU's is.
pub(super) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"lowtide-double-0";
    uuid[15] += u8::try_from(device).expect("few devices");
    uuid
}

entry! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if machine::get().locked().enrol() { Ok(()) } else { Err(OUT_OF_MEMORY) }
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(CUDA_VERSION)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(i32::try_from(machine::get().devices()).map_err(|_| INVALID_VALUE)?)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        index(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) {
        index(device)?;
        name.put_text(NAME, usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceGetUuid_v2(to: Out<[u8; 16]>, device: i32) {
        to.put(uuid(index(device)?))
    }

    // As the driver counts, what it reserves is not part of the total.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        index(device)?;
        bytes.put(to_usize(machine::get().total().saturating_sub(machine::get().reserved())))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        index(device)?;
        value.put(match attribute {
            16 => 4,  // multiprocessors
            75 => 9,  // compute capability 9.0
            76 => 0,
            // registered host memory has the same addresses; virtual memory; shared by descriptors
            91 | 102 | 103 => 1,
            _ => return Err(INVALID_VALUE),
        })
    }

    fn cuGetErrorName(error: i32, text: Out<*const c_char>) {
        text.put(code::name(error).map_or(std::ptr::null(), CStr::as_ptr))?;
        code::name(error).map(drop).ok_or(INVALID_VALUE)
    }
}
