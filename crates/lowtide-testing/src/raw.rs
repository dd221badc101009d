//! The driver's entry points as they are, for tests of what a driver really does.
//!
//! Pointers are references or plain addresses, handles plain numbers, results plain codes. Nothing
//! is checked: these are for a process that may lose its context, or its life.
#![allow(unsafe_code, reason = "calls the driver with whatever a test wants to know of")]
#![allow(non_snake_case, reason = "entry points carry the driver's names")]
#![expect(missing_docs, reason = "NVIDIA's driver API reference documents each")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use libloading::Library;
use lowtide_device::cuda::Driver;

/// A driver, called directly.
#[derive(Clone, Copy)]
pub struct Raw {
    library: &'static Library,
}

impl Raw {
    /// Loads and initialises the driver.
    ///
    /// # Panics
    /// If there is no driver.
    pub fn load() -> Raw {
        let driver = Driver::load().expect("rules are asked only where there is a driver");
        let path = driver.path().expect("a loaded driver has a file");
        // SAFETY: loaded and initialised already; this takes another reference to it.
        let library = unsafe { Library::new(path) }.expect("it was loaded once");
        Raw { library: Box::leak(Box::new(library)) }
    }

    /// Returns the address of an entry point, for a driver that is built from entry points.
    pub fn entry_point(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: only the address is taken; the library is never unloaded.
        let found = unsafe { self.library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        found.ok().and_then(|found| NonNull::new(*found))
    }

    /// Wraps the driver in a library; `cuInit` is left to the caller.
    pub(crate) fn of(library: &'static Library) -> Raw {
        Raw { library }
    }
}

macro_rules! raw {
    ($( $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => {
        impl Raw {
            $(
                #[expect(clippy::missing_panics_doc, clippy::too_many_arguments, clippy::allow_attributes)]
                #[allow(unfulfilled_lint_expectations, reason = "one list for all of them")]
                pub fn $name(&self, $($argument: $type),*) -> i32 {
                    type Entry = unsafe extern "C" fn($($type),*) -> i32;
                    // SAFETY: the type is the driver API's for this name, with references and
                    // numbers where it has pointers and handles.
                    let entry = unsafe { self.library.get::<Entry>(concat!(stringify!($name), "\0").as_bytes()) };
                    let entry = entry.expect(stringify!($name));
                    // SAFETY: the test's own responsibility; it runs in a process of its own.
                    unsafe { entry($($argument),*) }
                }
            )*
        }
    };
}

raw! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: &mut i32);
    cuDeviceGetCount(count: &mut i32);
    cuDeviceTotalMem_v2(bytes: &mut u64, device: i32);
    cuDevicePrimaryCtxRetain(context: &mut u64, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: &mut u32, active: &mut i32);
    cuCtxCreate_v2(context: &mut u64, flags: u32, device: i32);
    cuCtxDestroy_v2(context: u64);
    cuCtxGetCurrent(context: &mut u64);
    cuCtxSetCurrent(context: u64);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: &mut u64);
    cuCtxGetDevice(device: &mut i32);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: &mut u64, total: &mut u64);
    cuMemAlloc_v2(at: &mut u64, size: u64);
    cuMemFree_v2(at: u64);
    cuMemAddressReserve(at: &mut u64, size: u64, align: u64, hint: u64, flags: u64);
    cuMemAddressFree(at: u64, size: u64);
    cuMemCreate(handle: &mut u64, size: u64, properties: &Properties, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(at: u64, size: u64, offset: u64, handle: u64, flags: u64);
    cuMemUnmap(at: u64, size: u64);
    cuMemSetAccess(at: u64, size: u64, access: &Access, count: u64);
    cuMemGetAccess(flags: &mut u64, location: &[i32; 2], at: u64);
    cuMemRetainAllocationHandle(handle: &mut u64, at: u64);
    cuMemGetAllocationPropertiesFromHandle(properties: &mut [i32; 8], handle: u64);
    cuMemExportToShareableHandle(shared: &mut i32, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(handle: &mut u64, shared: u64, kind: u32);
    cuMemHostAlloc(at: &mut u64, size: u64, flags: u32);
    cuMemFreeHost(at: u64);
    cuMemHostRegister_v2(at: u64, size: u64, flags: u32);
    cuMemHostUnregister(at: u64);
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: u64, stream: u64);
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: u64, stream: u64);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: u64, stream: u64);
    cuMemcpyDtoH_v2(to: u64, from: u64, size: u64);
    cuMemcpyHtoD_v2(to: u64, from: u64, size: u64);
    cuMemsetD8Async(at: u64, byte: u8, size: u64, stream: u64);
    cuMemAllocAsync(at: &mut u64, size: u64, stream: u64);
    cuMemGetAddressRange_v2(base: &mut u64, size: &mut u64, at: u64);
    cuPointerGetAttribute(data: &mut u64, attribute: i32, at: u64);
    cuPointerGetAttributes(count: u32, kinds: &[i32; 3], places: &[u64; 3], at: u64);
    cuIpcGetMemHandle(handle: &mut [u8; 64], at: u64);
    cuIpcOpenMemHandle_v2(at: &mut u64, handle: LegacyHandle, flags: u32);
    cuIpcCloseMemHandle(at: u64);
    cuStreamCreate(stream: &mut u64, flags: u32);
    cuStreamDestroy_v2(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamGetId(stream: u64, id: &mut u64);
    cuStreamBeginCapture_v2(stream: u64, mode: u32);
    cuStreamEndCapture(stream: u64, graph: &mut u64);
    cuStreamIsCapturing(stream: u64, status: &mut u32);
    cuThreadExchangeStreamCaptureMode(mode: &mut u32);
    cuGraphInstantiateWithFlags(exec: &mut u64, graph: u64, flags: u64);
    cuGraphLaunch(exec: u64, stream: u64);
    cuGraphExecDestroy(exec: u64);
    cuGraphDestroy(graph: u64);
    cuEventCreate(event: &mut u64, flags: u32);
    cuEventDestroy_v2(event: u64);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuModuleLoadData(module: &mut u64, image: &CImage);
    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: &mut u64, module: u64, name: &CName);
    cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: u64, parameters: &mut [u64; 4], extra: u64,
    );
    cuCheckpointProcessGetState(pid: i32, state: &mut i32);
    cuCheckpointProcessLock(pid: i32, arguments: &[u64; 8]);
    cuCheckpointProcessCheckpoint(pid: i32, arguments: u64);
    cuCheckpointProcessRestore(pid: i32, arguments: u64);
    cuCheckpointProcessUnlock(pid: i32, arguments: u64);
}

/// The first byte of a C string or image; the rest lies behind it.
pub type CName = u8;
/// The first byte of a module image that ends with a zero.
pub type CImage = u8;

/// Returns the first byte of a C string.
///
/// # Panics
/// Never: a C string has at least its end.
pub fn first(text: &CStr) -> &u8 {
    text.to_bytes_with_nul().first().expect("a C string has at least its end")
}

/// `CUmemAllocationProp` for pinned memory of a device: kind, types of handles, kind and number of the
/// location; the rest is zero.
#[repr(C, align(8))]
pub struct Properties([i32; 8]);

impl Properties {
    /// Creates the properties of memory on this device.
    pub fn on(device: i32) -> Properties {
        Properties([1, 0, 1, device, 0, 0, 0, 0])
    }

    /// Creates the properties of memory on device 0 that can be exported as a file descriptor.
    pub fn exportable() -> Properties {
        Properties([1, 1, 1, 0, 0, 0, 0, 0])
    }
}

impl Default for Properties {
    fn default() -> Properties {
        Properties::on(0)
    }
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LegacyHandle(pub [u8; 64]);

/// `CUmemAccessDesc` for device 0: kind and number of the location, flags.
#[repr(C)]
pub struct Access([i32; 3]);

impl Access {
    /// Access for reading and writing.
    pub const READ_WRITE: Access = Access([1, 0, 3]);
    /// Access for reading only.
    pub const READ: Access = Access([1, 0, 1]);
}
