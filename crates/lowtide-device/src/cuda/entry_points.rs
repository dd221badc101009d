//! Every entry point of the CUDA driver that lowtide knows, in one list.
//!
//! Each row has the CUDA version that brought the entry point. Rows are grouped. The first group is
//! needed always; a driver that lacks an entry point of another group can do everything but what that
//! group is for.
//!
//! Result codes stay plain numbers, because a newer driver may return a code that no list of ours
//! has.
#![allow(unsafe_code, reason = "declares and looks up the driver's functions")]
#![allow(non_snake_case, reason = "entry points carry the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr::NonNull;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule,
    CUstream, CUuuid,
};

use super::version::CudaVersion;

/// A row of the list of entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPoint {
    /// The name that the driver exports.
    pub name: &'static str,
    /// The CUDA version that brought it.
    pub since: CudaVersion,
    /// The group that it belongs to.
    pub group: EntryGroup,
}

/// An entry point that a driver does not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missing {
    pub(super) name: &'static str,
    pub(super) since: CudaVersion,
}

/// Finds an entry point by its exported name.
pub(super) type LookUp<'a> = &'a mut dyn FnMut(&CStr) -> Option<NonNull<c_void>>;

macro_rules! entry_points {
    ($(
        $(#[$doc:meta])*
        $group:ident in $calls:ident {
            $( $since:literal $name:ident($($argument:ident: $type:ty),* $(,)?); )*
        }
    )*) => {
        /// A group of entry points. A driver has all of a group or cannot do what it is for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EntryGroup {
            $( $(#[$doc])* $group, )*
        }

        $(
            $(#[$doc])*
            ///
            /// The fields are the driver's functions. NVIDIA's driver API reference documents each.
            #[expect(missing_docs, reason = "NVIDIA's driver API reference documents each")]
            #[derive(Clone, Copy)]
            pub struct $calls {
                $(pub $name: unsafe extern "C" fn($($type),*) -> i32,)*
            }

            impl $calls {
                /// Looks up every function of the group.
                ///
                /// # Safety
                /// What `look_up` returns for a name is the driver's function of that name, and
                /// stays valid until the process ends.
                pub(super) unsafe fn look_up(look_up: LookUp<'_>) -> Result<$calls, Missing> {
                    Ok($calls {
                        $($name: {
                            const NAME: &CStr = c_name(concat!(stringify!($name), "\0"));
                            let since = CudaVersion::parse($since);
                            let missing = Missing { name: stringify!($name), since };
                            let found = look_up(NAME).ok_or(missing)?;
                            // SAFETY: the driver's function of this name, by the caller's promise;
                            // its type is the driver API's, and a function is never at zero.
                            unsafe {
                                mem::transmute::<
                                    NonNull<c_void>,
                                    unsafe extern "C" fn($($type),*) -> i32,
                                >(found)
                            }
                        },)*
                    })
                }
            }
        )*

        /// Every entry point that lowtide knows.
        pub const ENTRY_POINTS: &[EntryPoint] = &[
            $($(
                EntryPoint {
                    name: stringify!($name),
                    since: CudaVersion::parse($since),
                    group: EntryGroup::$group,
                },
            )*)*
        ];
    };
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only zero"),
    }
}

entry_points! {
    /// Devices, virtual memory, host memory, copies, streams and events. lowtide works with no
    /// driver that lacks one of these.
    Core in CoreCalls {
        "2.0" cuInit(flags: c_uint);
        "2.2" cuDriverGetVersion(version: *mut c_int);
        "6.0" cuGetErrorName(code: i32, name: *mut *const c_char);
        "2.0" cuDeviceGetCount(count: *mut c_int);
        "2.0" cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        "2.0" cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
        "11.4" cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        "3.2" cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        "2.0" cuDeviceGetAttribute(
            value: *mut c_int,
            attribute: CUdevice_attribute,
            device: CUdevice,
        );
        "4.0" cuCtxPushCurrent_v2(context: CUcontext);
        "4.0" cuCtxPopCurrent_v2(context: *mut CUcontext);
        "2.0" cuCtxGetDevice(device: *mut CUdevice);
        "2.0" cuCtxSynchronize();
        "10.1" cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
        "3.2" cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        "10.2" cuMemGetAllocationGranularity(
            granularity: *mut usize,
            properties: *const CUmemAllocationProp,
            which: CUmemAllocationGranularity_flags,
        );
        "10.2" cuMemAddressReserve(
            at: *mut CUdeviceptr,
            size: usize,
            align: usize,
            hint: CUdeviceptr,
            flags: u64,
        );
        "10.2" cuMemAddressFree(at: CUdeviceptr, size: usize);
        "10.2" cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle,
            size: usize,
            properties: *const CUmemAllocationProp,
            flags: u64,
        );
        "10.2" cuMemRelease(handle: CUmemGenericAllocationHandle);
        "10.2" cuMemMap(
            at: CUdeviceptr,
            size: usize,
            offset: usize,
            handle: CUmemGenericAllocationHandle,
            flags: u64,
        );
        "10.2" cuMemSetAccess(
            at: CUdeviceptr,
            size: usize,
            access: *const CUmemAccessDesc,
            count: usize,
        );
        "10.2" cuMemUnmap(at: CUdeviceptr, size: usize);
        "6.5" cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint);
        "4.0" cuMemHostUnregister(at: *mut c_void);
        "2.2" cuMemHostAlloc(at: *mut *mut c_void, size: usize, flags: c_uint);
        "2.0" cuMemFreeHost(at: *mut c_void);
        "3.2" cuMemcpyDtoHAsync_v2(
            to: *mut c_void,
            from: CUdeviceptr,
            size: usize,
            stream: CUstream,
        );
        "3.2" cuMemcpyHtoDAsync_v2(
            to: CUdeviceptr,
            from: *const c_void,
            size: usize,
            stream: CUstream,
        );
        "3.2" cuMemcpyDtoDAsync_v2(
            to: CUdeviceptr,
            from: CUdeviceptr,
            size: usize,
            stream: CUstream,
        );
        "3.2" cuMemsetD8Async(at: CUdeviceptr, byte: u8, size: usize, stream: CUstream);
        "2.0" cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        "4.0" cuStreamDestroy_v2(stream: CUstream);
        "2.0" cuStreamSynchronize(stream: CUstream);
        "2.0" cuStreamQuery(stream: CUstream);
        "12.0" cuStreamGetId(stream: CUstream, id: *mut u64);
        "2.0" cuEventCreate(event: *mut CUevent, flags: c_uint);
        "4.0" cuEventDestroy_v2(event: CUevent);
        "2.0" cuEventRecord(event: CUevent, stream: CUstream);
        "2.0" cuEventSynchronize(event: CUevent);
    }

    /// The primary context of a device, for callers that bring no context of their own.
    PrimaryContext in PrimaryContextCalls {
        "7.0" cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        "11.0" cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    }

    // A module's code is copied to the device, with lazy loading not before a function is asked for.
    /// Modules and launches, for digests.
    Kernels in KernelCalls {
        "2.0" cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        "2.0" cuModuleUnload(module: CUmodule);
        "2.0" cuModuleGetFunction(
            function: *mut CUfunction,
            module: CUmodule,
            name: *const c_char,
        );
        "4.0" cuLaunchKernel(
            function: CUfunction,
            grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint,
            shared_bytes: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
    }

    // They concern another process; the caller's own memory is not touched.
    /// Taking a whole process off the device and putting it back.
    Checkpoint in CheckpointCalls {
        "12.8" cuCheckpointProcessGetState(pid: c_int, state: *mut c_int);
        "12.8" cuCheckpointProcessLock(pid: c_int, arguments: *mut c_void);
        "12.8" cuCheckpointProcessCheckpoint(pid: c_int, arguments: *mut c_void);
        "12.8" cuCheckpointProcessRestore(pid: c_int, arguments: *mut c_void);
        "12.8" cuCheckpointProcessUnlock(pid: c_int, arguments: *mut c_void);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_listed_once() {
        let names: BTreeSet<_> = ENTRY_POINTS.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ENTRY_POINTS.len());
    }

    #[test]
    fn a_group_lacks_the_first_name_that_is_not_found() {
        let mut asked = Vec::new();
        let mut nothing = |name: &CStr| {
            asked.push(name.to_owned());
            None
        };
        // SAFETY: nothing is found, so nothing can be called.
        let missing = unsafe { CheckpointCalls::look_up(&mut nothing) }.map(drop).unwrap_err();
        assert_eq!(missing.name, "cuCheckpointProcessGetState");
        assert_eq!(missing.since, CudaVersion::new(12, 8));
        assert_eq!(asked, [c"cuCheckpointProcessGetState".to_owned()]);
    }
}
