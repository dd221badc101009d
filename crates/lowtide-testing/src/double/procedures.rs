//! `cuGetProcAddress`: what the driver says about where its functions are.
//!
//! A caller gives a name without a version and gets the newest function of that name.

use std::ffi::c_void;

use super::code::NOT_FOUND;
use super::entry::entry;
use super::pointers::{Out, Text};

/// What is found, by the driver's number.
const FOUND: i32 = 0;
const NOT_THERE: i32 = 1;

macro_rules! procedures {
    ($($name:literal = $symbol:ident),* $(,)?) => {
        #[allow(unsafe_code, reason = "names functions of this library")]
        mod functions {
            use std::ffi::c_void;

            unsafe extern "C" { $(fn $symbol();)* }

            pub(super) fn of(name: &str) -> Option<*const c_void> {
                match name {
                    $($name => Some($symbol as *const c_void),)*
                    _ => None,
                }
            }
        }
    };
}

procedures! {
    "cuInit" = cuInit,
    "cuGetProcAddress" = cuGetProcAddress_v2,
    "cuDriverGetVersion" = cuDriverGetVersion,
    "cuDeviceGet" = cuDeviceGet,
    "cuDevicePrimaryCtxRetain" = cuDevicePrimaryCtxRetain,
    "cuDevicePrimaryCtxRelease" = cuDevicePrimaryCtxRelease_v2,
    "cuCtxCreate" = cuCtxCreate_v2,
    "cuCtxDestroy" = cuCtxDestroy_v2,
    "cuCtxSetCurrent" = cuCtxSetCurrent,
    "cuCtxEnablePeerAccess" = cuCtxEnablePeerAccess,
    "cuCtxSynchronize" = cuCtxSynchronize,
    "cuMemAlloc" = cuMemAlloc_v2,
    "cuMemFree" = cuMemFree_v2,
    "cuMemGetInfo" = cuMemGetInfo_v2,
    "cuMemGetAddressRange" = cuMemGetAddressRange_v2,
    "cuPointerGetAttribute" = cuPointerGetAttribute,
    "cuMemcpyHtoD" = cuMemcpyHtoD_v2,
    "cuMemcpyDtoH" = cuMemcpyDtoH_v2,
    "cuMemsetD8Async" = cuMemsetD8Async,
    "cuStreamCreate" = cuStreamCreate,
    "cuStreamSynchronize" = cuStreamSynchronize,
    "cuStreamQuery" = cuStreamQuery,
    "cuStreamBeginCapture" = cuStreamBeginCapture_v2,
    "cuStreamEndCapture" = cuStreamEndCapture,
    "cuGraphInstantiateWithFlags" = cuGraphInstantiateWithFlags,
    "cuGraphLaunch" = cuGraphLaunch,
    "cuMemCreate" = cuMemCreate,
    "cuMemRelease" = cuMemRelease,
    "cuMemAddressReserve" = cuMemAddressReserve,
    "cuMemAddressFree" = cuMemAddressFree,
    "cuMemMap" = cuMemMap,
    "cuMemUnmap" = cuMemUnmap,
    "cuMemSetAccess" = cuMemSetAccess,
    "cuMemGetAccess" = cuMemGetAccess,
    "cuMemRetainAllocationHandle" = cuMemRetainAllocationHandle,
    "cuMemGetAllocationPropertiesFromHandle" = cuMemGetAllocationPropertiesFromHandle,
    "cuMemExportToShareableHandle" = cuMemExportToShareableHandle,
    "cuMemImportFromShareableHandle" = cuMemImportFromShareableHandle,
    "cuIpcGetMemHandle" = cuIpcGetMemHandle,
    "cuIpcOpenMemHandle" = cuIpcOpenMemHandle_v2,
    "cuIpcCloseMemHandle" = cuIpcCloseMemHandle,
    "cuLowtideDoubleOnly" = cuLowtideDoubleOnly,
}

entry! {
    fn cuGetProcAddress_v2(
        name: Text,
        function: Out<*const c_void>,
        _version: i32,
        _flags: u64,
        status: Out<i32>,
    ) {
        let found = functions::of(&name.get()?);
        status.put_if_wanted(if found.is_some() { FOUND } else { NOT_THERE });
        function.put(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(NOT_FOUND)
    }

    // No driver has it: it stands for what a newer driver brings. Adds its arguments up, so that a
    // caller sees whether all of them arrived.
    fn cuLowtideDoubleOnly(
        a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, sum: Out<u64>,
    ) {
        sum.put(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h)
    }
}
