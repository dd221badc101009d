//! The driver's result codes that the double can answer, with their names.

use std::ffi::{CStr, c_char};

use super::entry::{Out, entry};

macro_rules! codes {
    ($($short:ident = $value:literal $name:literal,)*) => {
        $(pub(super) const $short: i32 = $value;)*
        fn name(code: i32) -> Option<&'static CStr> {
            match code {
                $($value => Some($name),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0 c"CUDA_SUCCESS",
    INVALID_VALUE = 1 c"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY = 2 c"CUDA_ERROR_OUT_OF_MEMORY",
    NOT_INITIALIZED = 3 c"CUDA_ERROR_NOT_INITIALIZED",
    INVALID_DEVICE_FUNCTION = 98 c"CUDA_ERROR_INVALID_DEVICE_FUNCTION",
    INVALID_DEVICE = 101 c"CUDA_ERROR_INVALID_DEVICE",
    INVALID_CONTEXT = 201 c"CUDA_ERROR_INVALID_CONTEXT",
    INVALID_PTX = 218 c"CUDA_ERROR_INVALID_PTX",
    OPERATING_SYSTEM = 304 c"CUDA_ERROR_OPERATING_SYSTEM",
    INVALID_HANDLE = 400 c"CUDA_ERROR_INVALID_HANDLE",
    ILLEGAL_STATE = 401 c"CUDA_ERROR_ILLEGAL_STATE",
    NOT_FOUND = 500 c"CUDA_ERROR_NOT_FOUND",
    NOT_READY = 600 c"CUDA_ERROR_NOT_READY",
    ILLEGAL_ADDRESS = 700 c"CUDA_ERROR_ILLEGAL_ADDRESS",
    CONTEXT_IS_DESTROYED = 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
    ALREADY_REGISTERED = 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    NOT_REGISTERED = 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    LAUNCH_FAILED = 719 c"CUDA_ERROR_LAUNCH_FAILED",
    NOT_SUPPORTED = 801 c"CUDA_ERROR_NOT_SUPPORTED",
    CAPTURE_UNSUPPORTED = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    CAPTURE_INVALIDATED = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    CAPTURE_IMPLICIT = 906 c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    CAPTURE_WRONG_THREAD = 908 c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
    UNKNOWN = 999 c"CUDA_ERROR_UNKNOWN",
}

entry! {
    fn cuGetErrorName(error: i32, text: Out<*const c_char>) {
        text.put(name(error).map_or(std::ptr::null(), CStr::as_ptr))?;
        name(error).map(drop).ok_or(INVALID_VALUE)
    }
}
