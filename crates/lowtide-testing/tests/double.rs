//! The driver double, held to its rules through the functions it exports.
//!
//! Tests take turns with the double, and each ends by checking that it left nothing.
#![allow(unsafe_code, reason = "calls exported functions by their C types")]
#![allow(clippy::borrow_as_ptr, clippy::too_many_arguments, reason = "as C calls are written")]

use std::ffi::{CStr, c_char, c_void};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_testing::double::{Double, DoubleTurn, Live};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const OK: i32 = 0;
/// A minute: longer than any test takes, so what is this late has not run.
const LATE: &str = "late_us=60000000";
const READ: u32 = 1;
const READ_WRITE: u32 = 3;

#[repr(C)]
struct Prop {
    kind: u32,
    handle_types: u32,
    location: [i32; 2],
    windows: usize,
    flags: [u8; 8],
}

#[repr(C)]
struct Access {
    location: [i32; 2],
    flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Process {
    pid: u32,
    used: u64,
    instances: [u32; 2],
}

#[repr(C)]
#[derive(Default)]
struct Memory {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Methods that call the loaded double's functions of the same name.
macro_rules! driver {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the driver's names")]
        impl Calls {
            $(fn $name(self, $($arg: $type),*) -> i32 {
                let address = self.0.address(stringify!($name));
                // SAFETY: the types are those of the driver's header.
                let call: extern "C" fn($($type),*) -> i32 = unsafe { std::mem::transmute(address) };
                call($($arg),*)
            })*
        }
    };
}

#[derive(Clone, Copy)]
struct Calls(Double);

driver! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuGetErrorName(code: i32, text: *mut *const c_char);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGet(device: *mut i32, index: i32);
    cuDeviceGetName(name: *mut c_char, room: i32, device: i32);
    cuDeviceTotalMem_v2(bytes: *mut u64, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDevicePrimaryCtxRetain(context: *mut u64, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    cuCtxGetCurrent(context: *mut u64);
    cuCtxSetCurrent(context: u64);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: *mut u64);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: *mut u64, total: *mut u64);
    cuMemAlloc_v2(at: *mut u64, bytes: u64);
    cuMemFree_v2(at: u64);
    cuMemGetAllocationGranularity(bytes: *mut u64, prop: *const Prop, option: u32);
    cuMemAddressReserve(at: *mut u64, bytes: u64, alignment: u64, hint: u64, flags: u64);
    cuMemAddressFree(at: u64, bytes: u64);
    cuMemCreate(handle: *mut u64, bytes: u64, prop: *const Prop, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(at: u64, bytes: u64, offset: u64, handle: u64, flags: u64);
    cuMemUnmap(at: u64, bytes: u64);
    cuMemSetAccess(at: u64, bytes: u64, access: *const Access, count: usize);
    cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut u64, at: u64);
    cuIpcGetMemHandle(handle: *mut [u8; 64], at: u64);
    cuMemHostAlloc(at: *mut usize, bytes: u64, flags: u32);
    cuMemFreeHost(at: usize);
    cuMemHostRegister_v2(at: usize, bytes: u64, flags: u32);
    cuMemHostUnregister(at: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: u64, stream: u64);
    cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: u64, stream: u64);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: u64, stream: u64);
    cuMemcpyHtoD_v2(to: u64, from: usize, bytes: u64);
    cuMemcpyDtoH_v2(to: usize, from: u64, bytes: u64);
    cuMemsetD8Async(at: u64, value: u8, count: u64, stream: u64);
    cuMemsetD32Async(at: u64, value: u32, count: u64, stream: u64);
    cuStreamCreate(stream: *mut u64, flags: u32);
    cuStreamDestroy_v2(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuStreamGetId(stream: u64, id: *mut u64);
    cuStreamBeginCapture_v2(stream: u64, mode: i32);
    cuStreamEndCapture(stream: u64, graph: *mut u64);
    cuStreamIsCapturing(stream: u64, status: *mut i32);
    cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64);
    cuGraphLaunch(exec: u64, stream: u64);
    cuGraphDestroy(graph: u64);
    cuGraphExecDestroy(exec: u64);
    cuEventCreate(event: *mut u64, flags: u32);
    cuEventDestroy_v2(event: u64);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventElapsedTime(ms: *mut f32, start: u64, end: u64);
    cuModuleLoadData(module: *mut u64, image: *const c_char);
    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char);
    cuLaunchKernel(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: u64, params: *const *const c_void, extra: usize);
    cuCheckpointProcessGetState(pid: i32, state: *mut i32);
    cuCheckpointProcessLock(pid: i32, args: *const [u32; 16]);
    cuCheckpointProcessCheckpoint(pid: i32, args: usize);
    cuCheckpointProcessRestore(pid: i32, args: usize);
    cuCheckpointProcessUnlock(pid: i32, args: usize);
    nvmlInit_v2();
    nvmlShutdown();
    nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut usize);
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut usize);
    nvmlDeviceGetUUID(device: usize, text: *mut c_char, room: u32);
    nvmlDeviceGetName(device: usize, text: *mut c_char, room: u32);
    nvmlDeviceGetMemoryInfo_v2(device: usize, memory: *mut Memory);
    nvmlDeviceGetComputeRunningProcesses_v3(device: usize, count: *mut u32, to: *mut Process);
}

impl Calls {
    /// What a call wrote to its first argument, which must be a success.
    fn get<T: Default>(call: impl FnOnce(*mut T) -> i32) -> T {
        let mut value = T::default();
        assert_eq!(call(&raw mut value), OK);
        value
    }

    fn create(self, bytes: u64) -> u64 {
        Self::get(|handle| self.cuMemCreate(handle, bytes, &prop(), 0))
    }

    fn reserve(self, bytes: u64) -> u64 {
        Self::get(|at| self.cuMemAddressReserve(at, bytes, 0, 0, 0))
    }

    fn set_access(self, at: u64, bytes: u64, flags: u32) -> i32 {
        self.cuMemSetAccess(at, bytes, &Access { location: [1, 0], flags }, 1)
    }

    /// A reservation of `pages` with memory of one handle mapped over all of it.
    fn mapped(self, pages: u64) -> (u64, u64) {
        let (at, handle) = (self.reserve(pages * PAGE), self.create(pages * PAGE));
        assert_eq!(self.cuMemMap(at, pages * PAGE, 0, handle, 0), OK);
        assert_eq!(self.set_access(at, pages * PAGE, READ_WRITE), OK);
        (at, handle)
    }

    fn unmapped(self, (at, handle): (u64, u64), pages: u64) {
        assert_eq!(self.cuMemUnmap(at, pages * PAGE), OK);
        assert_eq!(self.cuMemRelease(handle), OK);
        assert_eq!(self.cuMemAddressFree(at, pages * PAGE), OK);
    }

    fn stream(self, flags: u32) -> u64 {
        Self::get(|stream| self.cuStreamCreate(stream, flags))
    }

    fn event(self) -> u64 {
        Self::get(|event| self.cuEventCreate(event, 0))
    }

    fn pinned(self, bytes: u64) -> usize {
        Self::get(|at| self.cuMemHostAlloc(at, bytes, 0))
    }

    fn free_bytes(self) -> u64 {
        Self::get(|free| self.cuMemGetInfo_v2(free, &mut 0))
    }

    fn bytes_at(self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; count];
        let to = bytes.as_mut_ptr().expose_provenance();
        assert_eq!(self.cuMemcpyDtoH_v2(to, at, count as u64), OK);
        bytes
    }

    fn capture_status(self, stream: u64) -> i32 {
        Self::get(|status| self.cuStreamIsCapturing(stream, status))
    }

    fn nvml_memory(self) -> Memory {
        let version = u32::try_from(size_of::<Memory>()).expect("small") | 2 << 24;
        let mut memory = Memory { version, ..Memory::default() };
        assert_eq!(self.nvmlDeviceGetMemoryInfo_v2(self.nvml_device(), &mut memory), OK);
        memory
    }

    fn nvml_device(self) -> usize {
        Self::get(|device| self.nvmlDeviceGetHandleByIndex_v2(0, device))
    }

    fn nvml_processes(self) -> Vec<(u32, u64)> {
        let mut found = [Process::default(); 16];
        let mut count = 16;
        let to = found.as_mut_ptr();
        assert_eq!(
            self.nvmlDeviceGetComputeRunningProcesses_v3(self.nvml_device(), &mut count, to),
            OK
        );
        found[..count as usize].iter().map(|process| (process.pid, process.used)).collect()
    }
}

fn prop() -> Prop {
    Prop { kind: 1, handle_types: 0, location: [1, 0], windows: 0, flags: [0; 8] }
}

/// One test's turn with the double, its driver initialised and a context current.
struct Gpu {
    calls: Calls,
    context: u64,
    /// Not all zeros only where a test before this one failed.
    before: Live,
    double: DoubleTurn,
}

impl Gpu {
    fn new() -> Gpu {
        let double = Double::take();
        let calls = Calls(*double);
        assert_eq!(calls.cuInit(0), OK);
        let before = double.live();
        let context = Calls::get(|context| calls.cuDevicePrimaryCtxRetain(context, 0));
        assert_eq!(calls.cuCtxPushCurrent_v2(context), OK);
        Gpu { calls, context, before, double }
    }
}

impl std::ops::Deref for Gpu {
    type Target = Calls;
    fn deref(&self) -> &Calls {
        &self.calls
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.double.clear_faults();
        while self.cuCtxPopCurrent_v2(std::ptr::null_mut()) == OK {}
        while self.cuDevicePrimaryCtxRelease_v2(0) == OK {}
        if !std::thread::panicking() {
            assert_eq!(self.double.live(), self.before, "the test left something");
        }
    }
}

mod memory {
    use super::*;

    #[test]
    fn sizes_are_whole_pages_and_must_fit() {
        let gpu = Gpu::new();
        let create = |bytes| gpu.cuMemCreate(&mut 0, bytes, &prop(), 0);
        assert_eq!((create(0), create(4096), create(1 << 40)), (1, 1, 2));
        assert_eq!(gpu.cuMemCreate(&mut 0, PAGE, &Prop { kind: 0, ..prop() }, 0), 1);
        assert_eq!(gpu.cuMemCreate(&mut 0, PAGE, &Prop { location: [1, 7], ..prop() }, 0), 101);
        let reserve = |bytes, alignment| gpu.cuMemAddressReserve(&mut 0, bytes, alignment, 0, 0);
        assert_eq!(
            (reserve(0, 0), reserve(4096, 0), reserve(PAGE, 3), reserve(1 << 60, 0)),
            (1, 1, 1, 2)
        );
        let aligned = Calls::get(|at| gpu.cuMemAddressReserve(at, PAGE, 1 << 30, 0, 0));
        assert_eq!(aligned % (1 << 30), 0);
        assert_eq!(gpu.cuMemAddressFree(aligned, PAGE), OK);
        for option in [0, 1] {
            let bytes =
                Calls::get(|bytes| gpu.cuMemGetAllocationGranularity(bytes, &prop(), option));
            assert_eq!(bytes, PAGE);
        }
    }

    #[test]
    fn a_mapping_is_a_whole_handle_inside_a_reservation() {
        let gpu = Gpu::new();
        let (at, handle, other) =
            (gpu.reserve(8 * PAGE), gpu.create(4 * PAGE), gpu.create(4 * PAGE));
        assert_eq!(gpu.cuMemMap(at, 2 * PAGE, 2 * PAGE, handle, 0), 801);
        assert_eq!(gpu.cuMemMap(at, 2 * PAGE, 0, handle, 0), 801);
        assert_eq!(gpu.cuMemMap(at, 4 * PAGE - 4096, 0, handle, 0), 801);
        assert_eq!(gpu.cuMemMap(at + 4096, 4 * PAGE, 0, handle, 0), 1);
        assert_eq!(
            gpu.cuMemMap(at + 6 * PAGE, 4 * PAGE, 0, handle, 0),
            1,
            "stricter than the driver"
        );
        assert_eq!(gpu.cuMemMap(at, 4 * PAGE, 0, handle, 0), OK);
        assert_eq!(gpu.cuMemMap(at + 2 * PAGE, 4 * PAGE, 0, other, 0), 1);
        assert_eq!(gpu.cuMemMap(at + 4 * PAGE, 4 * PAGE, 0, handle, 0), OK, "twice the same");
        assert_eq!(gpu.cuMemUnmap(at, 8 * PAGE), OK);
        assert_eq!((gpu.cuMemRelease(handle), gpu.cuMemRelease(handle)), (OK, 1));
        assert_eq!(gpu.cuMemMap(at, 4 * PAGE, 0, handle, 0), 1, "released");
        assert_eq!(gpu.cuMemRelease(other), OK);
        assert_eq!(gpu.cuMemAddressFree(at, 8 * PAGE), OK);
    }

    #[test]
    fn an_unmap_cuts_no_mapping_and_may_span_several_and_holes() {
        let gpu = Gpu::new();
        let at = gpu.reserve(8 * PAGE);
        let handles = [gpu.create(2 * PAGE), gpu.create(PAGE)];
        assert_eq!(gpu.cuMemMap(at, 2 * PAGE, 0, handles[0], 0), OK);
        assert_eq!(gpu.cuMemMap(at + 4 * PAGE, PAGE, 0, handles[1], 0), OK);
        assert_eq!(gpu.cuMemUnmap(at, PAGE), 1);
        assert_eq!(gpu.cuMemUnmap(at + PAGE, 4 * PAGE), 1);
        assert_eq!(gpu.double.live().mappings, 2, "nothing was unmapped on the way");
        assert_eq!(gpu.cuMemUnmap(at + 6 * PAGE, 4 * PAGE), 1, "beyond the reservation");
        assert_eq!(gpu.cuMemUnmap(at, 8 * PAGE), OK);
        assert_eq!(gpu.cuMemUnmap(at, 2 * PAGE), OK, "nothing is there any more");
        assert_eq!(handles.map(|handle| gpu.cuMemRelease(handle)), [OK, OK]);
        assert_eq!(gpu.cuMemAddressFree(at, 8 * PAGE), OK);
    }

    #[test]
    fn a_reservation_is_freed_whole_and_empty() {
        let gpu = Gpu::new();
        let (at, handle) = gpu.mapped(2);
        assert_eq!(gpu.cuMemAddressFree(at, 2 * PAGE), 1);
        assert_eq!(gpu.cuMemUnmap(at, 2 * PAGE), OK);
        assert_eq!(gpu.cuMemAddressFree(at, PAGE), 1);
        assert_eq!(gpu.cuMemAddressFree(at + PAGE, PAGE), 1);
        assert_eq!(gpu.cuMemAddressFree(at, 2 * PAGE), OK);
        assert_eq!(gpu.cuMemAddressFree(at, 2 * PAGE), 1);
        assert_eq!(gpu.cuMemRelease(handle), OK);
    }

    #[test]
    fn memory_is_free_when_neither_mapping_nor_handle_is_left() {
        let gpu = Gpu::new();
        let before = gpu.free_bytes();
        let (at, handle) = gpu.mapped(4);
        assert_eq!(gpu.free_bytes(), before - 4 * PAGE);
        assert_eq!(gpu.cuMemRelease(handle), OK);
        assert_eq!(gpu.free_bytes(), before - 4 * PAGE, "still mapped");
        assert_eq!(gpu.cuMemUnmap(at, 4 * PAGE), OK);
        assert_eq!(gpu.free_bytes(), before);
        let kept = gpu.create(PAGE);
        assert_eq!(gpu.cuMemMap(at, PAGE, 0, kept, 0), OK);
        assert_eq!(gpu.cuMemUnmap(at, PAGE), OK);
        assert_eq!(gpu.free_bytes(), before - PAGE, "still held");
        assert_eq!(gpu.cuMemRelease(kept), OK);
        assert_eq!(gpu.free_bytes(), before);
        assert_eq!(gpu.cuMemAddressFree(at, 4 * PAGE), OK);
    }

    #[test]
    fn access_covers_whole_mappings_without_a_hole_and_ends_with_them() {
        let gpu = Gpu::new();
        let at = gpu.reserve(4 * PAGE);
        let handles = [gpu.create(2 * PAGE), gpu.create(PAGE)];
        assert_eq!(gpu.set_access(at, PAGE, READ_WRITE), 1);
        assert_eq!(gpu.cuMemMap(at, 2 * PAGE, 0, handles[0], 0), OK);
        assert_eq!(gpu.set_access(at, PAGE, READ_WRITE), 1);
        assert_eq!(gpu.set_access(at, 3 * PAGE, READ_WRITE), 1);
        assert_eq!(gpu.cuMemMap(at + 2 * PAGE, PAGE, 0, handles[1], 0), OK);
        assert_eq!(gpu.cuMemsetD8Async(at, 1, 64, 0), 1, "mapped without access");
        assert_eq!(gpu.set_access(at, 3 * PAGE, READ_WRITE), OK);
        assert_eq!(gpu.cuMemsetD8Async(at, 1, 3 * PAGE, 0), OK, "across two mappings");
        assert_eq!(gpu.cuMemsetD8Async(at, 1, 3 * PAGE + 1, 0), 1, "past the end");
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        assert_eq!(gpu.cuMemUnmap(at, 2 * PAGE), OK);
        assert_eq!(gpu.cuMemMap(at, 2 * PAGE, 0, handles[0], 0), OK);
        assert_eq!(gpu.cuMemsetD8Async(at, 1, 64, 0), 1, "access does not outlive the mapping");
        assert_eq!(gpu.set_access(at, 2 * PAGE, READ), OK);
        assert_eq!(gpu.cuMemsetD8Async(at, 1, 64, 0), 1, "read only");
        assert_eq!(gpu.bytes_at(at, 3), [1, 1, 1], "memory outlives the mapping");
        assert_eq!(gpu.cuMemUnmap(at, 4 * PAGE), OK);
        assert_eq!(gpu.cuMemcpyDtoH_v2(0, at, 64), 1);
        assert_eq!(gpu.cuCtxSynchronize(), OK, "the context is not broken by any of it");
        assert_eq!(handles.map(|handle| gpu.cuMemRelease(handle)), [OK, OK]);
        assert_eq!(gpu.cuMemAddressFree(at, 4 * PAGE), OK);
    }

    #[test]
    fn device_addresses_are_not_host_memory() {
        let gpu = Gpu::new();
        let mapped = gpu.mapped(1);
        let at = usize::try_from(mapped.0).expect("an address");
        assert_eq!(gpu.cuMemHostRegister_v2(at, PAGE, 0), 1);
        assert_eq!(gpu.cuMemcpyHtoD_v2(mapped.0, at, 64), 1);
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn plain_allocations_are_apart_from_virtual_memory() {
        let gpu = Gpu::new();
        let before = gpu.free_bytes();
        let plain = Calls::get(|at| gpu.cuMemAlloc_v2(at, 1000));
        assert_eq!(gpu.free_bytes(), before - PAGE, "rounded up");
        let (mut base, mut bytes) = (0, 0);
        assert_eq!(gpu.cuMemGetAddressRange_v2(&mut base, &mut bytes, plain + 10), OK);
        assert_eq!((base, bytes), (plain, 1000));
        assert_eq!(gpu.cuMemsetD8Async(plain, 0, 1001, 0), 1, "where the caller said it ends");
        let mapped = gpu.mapped(1);
        assert_eq!(gpu.cuIpcGetMemHandle(&mut [0; 64], mapped.0), 1);
        assert_eq!(gpu.cuIpcGetMemHandle(&mut [0; 64], plain), OK);
        assert_eq!((gpu.cuMemFree_v2(mapped.0), gpu.cuMemFree_v2(plain + 16)), (1, 1));
        assert_eq!(
            (gpu.cuMemFree_v2(plain), gpu.cuMemFree_v2(plain), gpu.cuMemFree_v2(0)),
            (OK, 1, OK)
        );
        assert_eq!(gpu.cuMemAlloc_v2(&mut 0, 0), 1);
        gpu.unmapped(mapped, 1);
        assert_eq!(gpu.free_bytes(), before);
    }

    #[test]
    fn host_ranges_do_not_overlap_and_copies_do_not_cross_them() {
        let gpu = Gpu::new();
        let mapped = gpu.mapped(1);
        let host = vec![7u8; 4 << 20];
        let at = host.as_ptr().expose_provenance();
        assert_eq!(gpu.cuMemHostRegister_v2(at, MIB, 0), OK);
        assert_eq!(gpu.cuMemHostRegister_v2(at + 4096, MIB, 0), 712);
        assert_eq!(gpu.cuMemHostRegister_v2(at + (1 << 20), MIB, 0), OK, "adjacent");
        assert_eq!(gpu.cuMemHostUnregister(at + 4096), 713);
        assert_eq!(gpu.cuMemHostRegister_v2(4096, 4096, 0), 1, "nothing is there");
        let copy = |from, bytes| gpu.cuMemcpyHtoDAsync_v2(mapped.0, from, bytes, 0);
        assert_eq!(copy(at + (1 << 20) - 64, 128), 1, "from one into the next");
        assert_eq!(copy(at + (2 << 20) - 64, 128), 1, "out of one");
        assert_eq!(copy(at, MIB), OK);
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        assert_eq!(gpu.cuMemHostUnregister(at), OK);
        assert_eq!((gpu.cuMemFreeHost(at), gpu.cuMemHostUnregister(at)), (1, 713));
        assert_eq!(gpu.cuMemHostUnregister(at + (1 << 20)), OK);
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn a_size_can_be_out_of_memory_by_request() {
        let gpu = Gpu::new();
        gpu.double.configure("oom_at=4MiB");
        assert_eq!(gpu.cuMemCreate(&mut 0, 2 * PAGE, &prop(), 0), 2);
        assert_eq!(gpu.cuMemAlloc_v2(&mut 0, 3 * MIB), 2, "counted in pages");
        assert_eq!(gpu.cuMemRelease(gpu.create(PAGE)), OK);
    }
}

mod streams {
    use super::*;

    #[test]
    fn work_is_late_until_somebody_waits() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let (mapped, stream, pinned) = (gpu.mapped(1), gpu.stream(1), gpu.pinned(64));
        assert_eq!(gpu.cuMemsetD32Async(mapped.0, 0x0807_0605, 16, stream), OK);
        assert_eq!(gpu.cuMemcpyDtoHAsync_v2(pinned, mapped.0, 64, stream), OK);
        assert_eq!(gpu.cuStreamQuery(stream), 600);
        assert_eq!(gpu.double.live().operations, 2);
        assert_eq!(gpu.cuStreamSynchronize(stream), OK);
        assert_eq!(gpu.cuStreamQuery(stream), OK);
        // SAFETY: pinned host memory of the double, at least eight bytes.
        let bytes = unsafe { std::ptr::with_exposed_provenance::<[u8; 8]>(pinned).read() };
        assert_eq!(bytes, [5, 6, 7, 8, 5, 6, 7, 8]);
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn work_also_starts_by_itself() {
        let gpu = Gpu::new();
        let (mapped, stream) = (gpu.mapped(1), gpu.stream(1));
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 1, PAGE, stream), OK);
        wait_until(|| gpu.cuStreamQuery(stream) == OK);
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn pageable_memory_is_read_at_the_call_and_written_before_it_returns() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let (mapped, stream) = (gpu.mapped(1), gpu.stream(1));
        let mut host = vec![3u8; 64];
        let at = host.as_mut_ptr().expose_provenance();
        assert_eq!(gpu.cuMemcpyHtoDAsync_v2(mapped.0, at, 64, stream), OK);
        assert_eq!(gpu.cuStreamQuery(stream), 600);
        host.fill(4);
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(mapped.0 + 64, mapped.0, 64, stream), OK);
        assert_eq!(gpu.cuMemcpyDtoHAsync_v2(at, mapped.0 + 64, 64, stream), OK);
        assert_eq!(host, [3; 64]);
        assert_eq!(gpu.cuMemcpyHtoDAsync_v2(mapped.0, 4096, 64, stream), 1, "nothing is there");
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn the_legacy_stream_orders_with_blocking_streams_only() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let (mapped, blocking, free) = (gpu.mapped(1), gpu.stream(0), gpu.stream(1));
        let fill = |stream| assert_eq!(gpu.cuMemsetD8Async(mapped.0, 1, 64, stream), OK);
        for (first, second, ordered) in [
            (0, blocking, true),
            (blocking, 0, true),
            (0, free, false),
            (free, 0, false),
            (blocking, free, false),
        ] {
            fill(first);
            fill(second);
            assert_eq!(gpu.cuStreamSynchronize(second), OK);
            assert_eq!(
                gpu.cuStreamQuery(first),
                if ordered { OK } else { 600 },
                "{first} {second}"
            );
            assert_eq!(gpu.cuCtxSynchronize(), OK);
        }
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn events_order_streams_and_take_times() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let (mapped, first, second) = (gpu.mapped(1), gpu.stream(1), gpu.stream(1));
        let (start, end) = (gpu.event(), gpu.event());
        assert_eq!(gpu.cuEventQuery(start), OK, "not recorded is done");
        assert_eq!(gpu.cuEventRecord(start, first), OK);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 9, 64, first), OK);
        assert_eq!(gpu.cuEventRecord(end, first), OK);
        assert_eq!(gpu.cuStreamWaitEvent(second, end, 0), OK);
        assert_eq!(gpu.cuEventQuery(end), 600);
        assert_eq!(gpu.cuEventElapsedTime(&mut 0.0, start, end), 600);
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(mapped.0 + 64, mapped.0, 64, second), OK);
        assert_eq!(gpu.cuStreamSynchronize(second), OK);
        assert_eq!(gpu.cuEventQuery(end), OK);
        assert!(Calls::get::<f32>(|ms| gpu.cuEventElapsedTime(ms, start, end)) >= 0.0);
        assert_eq!(gpu.bytes_at(mapped.0 + 64, 2), [9, 9]);
        assert_eq!((gpu.cuEventDestroy_v2(start), gpu.cuEventDestroy_v2(start)), (OK, 400));
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn handles_are_recycled_and_ids_are_not() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let mapped = gpu.mapped(1);
        let first = gpu.stream(1);
        let id = |stream| Calls::get::<u64>(|id| gpu.cuStreamGetId(stream, id));
        let first_id = id(first);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 6, 64, first), OK);
        assert_eq!((gpu.cuStreamDestroy_v2(first), gpu.cuStreamDestroy_v2(first)), (OK, 400));
        let second = gpu.stream(1);
        assert_eq!(second, first);
        assert_ne!(id(second), first_id);
        assert_eq!(gpu.cuStreamQuery(second), OK, "the new stream has no work");
        assert_eq!(gpu.double.live().operations, 1, "the old stream's work is still to run");
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        assert_eq!(gpu.bytes_at(mapped.0, 1), [6]);
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn a_copy_takes_as_long_as_asked() {
        let gpu = Gpu::new();
        let mapped = gpu.mapped(1);
        gpu.double.configure("copy_us=30000");
        let start = Instant::now();
        assert_eq!(gpu.bytes_at(mapped.0, 4), [0; 4]);
        assert!(start.elapsed() >= Duration::from_millis(30));
        gpu.unmapped(mapped, 1);
    }
}

mod broken_contexts {
    use super::*;

    /// What still works, and what no longer does, once a context is broken.
    fn assert_broken(gpu: &Gpu, error: i32, mapped: (u64, u64)) {
        assert_eq!(gpu.cuCtxSynchronize(), error);
        assert_eq!(gpu.cuMemGetInfo_v2(&mut 0, &mut 0), error);
        assert_eq!(gpu.cuStreamCreate(&mut 0, 1), error);
        assert_eq!(gpu.cuModuleLoadData(&mut 0, c".entry a".as_ptr()), error);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 0, 64, 0), error);
        assert_eq!(gpu.cuCtxPushCurrent_v2(gpu.context), OK);
        assert_eq!(gpu.cuCtxPopCurrent_v2(&mut 0), OK);
        assert_eq!(gpu.cuMemUnmap(mapped.0, PAGE), OK);
        assert_eq!(gpu.cuMemRelease(mapped.1), OK);
        assert_eq!(gpu.cuMemAddressFree(mapped.0, PAGE), OK);
        assert_eq!(gpu.cuDevicePrimaryCtxRelease_v2(0), OK);
        Calls::get::<u64>(|context| gpu.cuDevicePrimaryCtxRetain(context, 0));
        assert_eq!(gpu.cuCtxSynchronize(), OK, "a new context is whole");
    }

    #[test]
    fn unmap_does_not_wait_and_work_in_flight_breaks_the_context() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let (mapped, stream) = (gpu.mapped(1), gpu.stream(1));
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 1, 64, stream), OK);
        assert_eq!(gpu.cuMemUnmap(mapped.0, PAGE), OK);
        assert_eq!(gpu.double.live().operations, 1, "unmap waited");
        assert_eq!(gpu.cuStreamSynchronize(stream), 719);
        assert_eq!(gpu.cuStreamDestroy_v2(stream), OK);
        assert_broken(&gpu, 719, mapped);
    }

    #[test]
    fn memory_that_goes_while_a_copy_runs_breaks_the_context() {
        let gpu = Gpu::new();
        let (mapped, pinned) = (gpu.mapped(1), gpu.pinned(64));
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 9, 64, 0), OK);
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        gpu.double.configure("copy_us=500000");
        assert_eq!(gpu.cuMemcpyDtoHAsync_v2(pinned, mapped.0, 64, 0), OK);
        let first_byte = std::ptr::with_exposed_provenance::<u8>(pinned);
        // SAFETY: pinned host memory of the double, written by a thread of its own.
        wait_until(|| unsafe { first_byte.read_volatile() } == 9);
        assert_eq!(gpu.cuMemUnmap(mapped.0, PAGE), OK);
        assert_broken(&gpu, 719, mapped);
    }

    #[test]
    fn host_memory_unregistered_under_a_copy_breaks_the_context() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let mapped = gpu.mapped(1);
        let host = vec![7u8; 8192];
        let at = host.as_ptr().expose_provenance();
        assert_eq!(gpu.cuMemHostRegister_v2(at, 8192, 0), OK);
        assert_eq!(gpu.cuMemcpyHtoDAsync_v2(mapped.0, at, 64, 0), OK);
        assert_eq!(gpu.cuMemHostUnregister(at), OK);
        assert_broken(&gpu, 719, mapped);
    }

    #[test]
    fn a_kernel_on_memory_that_is_not_there_breaks_the_context() {
        let gpu = Gpu::new();
        let mapped = gpu.mapped(1);
        let nowhere = gpu.reserve(PAGE);
        let function = digest_function(*gpu);
        assert_eq!(gpu.cuMemcpyHtoD_v2(mapped.0, (&raw const nowhere).expose_provenance(), 8), OK);
        assert_eq!(
            launch_digest(*gpu, function, mapped.0, mapped.0 + 64, 1, &Keys::from_seed(1)),
            OK
        );
        assert_broken(&gpu, 700, mapped);
        assert_eq!(gpu.cuMemAddressFree(nowhere, PAGE), OK);
    }
}

fn digest_function(calls: Calls) -> u64 {
    let ptx = c".visible .entry lowtide_digest(\n .param .u64 p)\n.visible .entry other(";
    let module = Calls::get(|module| calls.cuModuleLoadData(module, ptx.as_ptr()));
    Calls::get(|function| calls.cuModuleGetFunction(function, module, c"lowtide_digest".as_ptr()))
}

fn launch_digest(
    calls: Calls,
    function: u64,
    pages: u64,
    out: u64,
    count: u64,
    keys: &Keys,
) -> i32 {
    let params: [*const c_void; 4] = [
        (&raw const pages).cast(),
        (&raw const out).cast(),
        (&raw const count).cast(),
        std::ptr::from_ref(keys).cast(),
    ];
    calls.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, 0, params.as_ptr(), 0)
}

mod kernels {
    use super::*;

    #[test]
    fn the_digest_is_the_hosts() {
        let gpu = Gpu::new();
        gpu.double.configure(LATE);
        let mapped = gpu.mapped(2);
        let list = Calls::get(|at| gpu.cuMemAlloc_v2(at, 4096));
        let out = gpu.pinned(4096);
        let page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 31 % 251) as u8).collect();
        assert_eq!(
            gpu.cuMemcpyHtoD_v2(mapped.0 + PAGE, page.as_ptr().expose_provenance(), PAGE),
            OK
        );
        let pages = [mapped.0 + PAGE, mapped.0];
        assert_eq!(gpu.cuMemcpyHtoD_v2(list, pages.as_ptr().expose_provenance(), 16), OK);
        let (function, mut keys) = (digest_function(*gpu), Keys::from_seed(5));
        assert_eq!(launch_digest(*gpu, function, list, out as u64, 2, &keys), OK);
        let expected = [keys.digest(&page), keys.digest(&vec![0; PAGE_BYTES])];
        // Arguments are the launch's: what becomes of them afterwards does not matter.
        keys = Keys::from_seed(6);
        assert_ne!(keys.digest(&page), expected[0]);
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        // SAFETY: pinned host memory of the double, room for two digests.
        let found = unsafe { std::ptr::with_exposed_provenance::<[Digest; 2]>(out).read() };
        assert_eq!(found, expected);
        assert_eq!(gpu.cuMemFree_v2(list), OK);
        gpu.unmapped(mapped, 2);
    }

    #[test]
    fn modules_are_the_names_in_their_text() {
        let gpu = Gpu::new();
        assert_eq!(gpu.cuModuleLoadData(&mut 0, c"\x7fELF".as_ptr()), 218);
        let module =
            Calls::get(|module| gpu.cuModuleLoadData(module, c".entry a(\n.entry b(".as_ptr()));
        assert_eq!(gpu.cuModuleGetFunction(&mut 0, module, c"c".as_ptr()), 500);
        let function = Calls::get(|f| gpu.cuModuleGetFunction(f, module, c"b".as_ptr()));
        let launch =
            |block| gpu.cuLaunchKernel(function, 1, 1, 1, block, 1, 1, 0, 0, std::ptr::null(), 0);
        assert_eq!((launch(0), launch(2048), launch(32)), (1, 1, 98));
        assert_eq!((gpu.cuModuleUnload(module), gpu.cuModuleUnload(module)), (OK, 400));
        assert_eq!(launch(32), 400);
    }
}

mod captures {
    use super::*;

    const GLOBAL: i32 = 0;
    const THREAD_LOCAL: i32 = 1;
    const RELAXED: i32 = 2;

    // The H200's answers, by what the call does to a capture.
    const SAFE: &[&str] = &[
        "create",
        "reserve",
        "unmap",
        "set access",
        "info",
        "copy",
        "fill",
        "fill other",
        "record other",
        "event",
        "stream",
    ];
    const UNSAFE_UNLESS_RELAXED: &[&str] = &[
        "register",
        "unregister",
        "host alloc",
        "alloc",
        "free",
        "unload",
        "sync other",
        "query other",
        "sync event",
        "query event",
    ];
    const UNSAFE: &[&str] = &["sync context", "sync", "query", "id"];

    /// What the calls are made on.
    struct Things {
        at: u64,
        plain: u64,
        host: usize,
        module: u64,
        event: u64,
        other: u64,
    }

    impl Things {
        fn call(&self, calls: Calls, name: &str, stream: u64) -> i32 {
            let &Things { at, plain, host, module, event, other } = self;
            match name {
                "create" => calls.cuMemRelease(calls.create(PAGE)),
                "reserve" => calls.cuMemAddressFree(calls.reserve(PAGE), PAGE),
                "unmap" => calls.cuMemUnmap(at + PAGE, PAGE),
                "set access" => calls.set_access(at, PAGE, READ_WRITE),
                "info" => calls.cuMemGetInfo_v2(&mut 0, &mut 0),
                "copy" => calls.cuMemcpyDtoH_v2(host, at, 64),
                "fill" => calls.cuMemsetD8Async(at, 1, 64, stream),
                "fill other" => calls.cuMemsetD8Async(at, 1, 64, other),
                "record other" => calls.cuEventRecord(event, other),
                "event" => calls.cuEventDestroy_v2(calls.event()),
                "stream" => calls.cuStreamDestroy_v2(calls.stream(1)),
                "register" => calls.cuMemHostRegister_v2(host, 8192, 0),
                "unregister" => calls.cuMemHostUnregister(host),
                "host alloc" => calls.cuMemHostAlloc(&mut 0, 64, 0),
                "alloc" => calls.cuMemAlloc_v2(&mut 0, 64),
                "free" => calls.cuMemFree_v2(plain),
                "unload" => calls.cuModuleUnload(module),
                "sync other" => calls.cuStreamSynchronize(other),
                "query other" => calls.cuStreamQuery(other),
                "sync event" => calls.cuEventSynchronize(event),
                "query event" => calls.cuEventQuery(event),
                "sync context" => calls.cuCtxSynchronize(),
                "sync" => calls.cuStreamSynchronize(stream),
                "query" => calls.cuStreamQuery(stream),
                "id" => calls.cuStreamGetId(stream, &mut 0),
                _ => panic!("no such call: {name}"),
            }
        }
    }

    #[test]
    fn unsafe_calls_invalidate_and_safe_ones_do_not() {
        let gpu = Gpu::new();
        let (at, handle, stream) = (gpu.reserve(2 * PAGE), gpu.create(PAGE), gpu.stream(1));
        assert_eq!(gpu.cuMemMap(at, PAGE, 0, handle, 0), OK);
        assert_eq!(gpu.set_access(at, PAGE, READ_WRITE), OK);
        let host = vec![0u8; 8192];
        let things = Things {
            at,
            plain: Calls::get(|plain| gpu.cuMemAlloc_v2(plain, PAGE)),
            host: host.as_ptr().expose_provenance(),
            module: Calls::get(|module| gpu.cuModuleLoadData(module, c".entry a".as_ptr())),
            event: gpu.event(),
            other: gpu.stream(1),
        };
        for name in [SAFE, UNSAFE_UNLESS_RELAXED, UNSAFE].concat() {
            for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
                let is_unsafe = match mode {
                    RELAXED => UNSAFE.contains(&name),
                    _ => !SAFE.contains(&name),
                };
                assert_eq!(gpu.cuStreamBeginCapture_v2(stream, mode), OK);
                let answer = things.call(*gpu, name, stream);
                let status = gpu.capture_status(stream);
                let mut graph = 77;
                let end = gpu.cuStreamEndCapture(stream, &mut graph);
                let expected = if is_unsafe { (900, 2, 901) } else { (OK, 1, OK) };
                assert_eq!((answer, status, end), expected, "{name} in mode {mode}");
                assert_eq!(gpu.cuGraphDestroy(graph), if is_unsafe { 400 } else { OK });
                assert_eq!(graph == 0, is_unsafe);
            }
        }
        // What the relaxed mode let happen goes with the context.
        assert_eq!(gpu.cuCtxSynchronize(), OK);
        assert_eq!(gpu.cuMemUnmap(at, PAGE), OK);
        assert_eq!(gpu.cuMemRelease(handle), OK);
        assert_eq!(gpu.cuMemAddressFree(at, 2 * PAGE), OK);
    }

    #[test]
    fn another_thread_breaks_a_global_capture_unless_it_is_relaxed() {
        let gpu = Gpu::new();
        let (stream, other, calls, context) = (gpu.stream(1), gpu.stream(1), *gpu, gpu.context);
        let elsewhere = |thread_mode: i32| {
            let query = move || {
                assert_eq!(calls.cuCtxSetCurrent(context), OK);
                let mut mode = thread_mode;
                assert_eq!(calls.cuThreadExchangeStreamCaptureMode(&mut mode), OK);
                assert_eq!(mode, GLOBAL, "a new thread's");
                calls.cuStreamQuery(other)
            };
            std::thread::spawn(query).join().expect("no panic")
        };
        for (capture_mode, thread_mode, answer) in [
            (GLOBAL, GLOBAL, 900),
            (GLOBAL, THREAD_LOCAL, OK),
            (GLOBAL, RELAXED, OK),
            (THREAD_LOCAL, GLOBAL, OK),
            (RELAXED, GLOBAL, OK),
        ] {
            assert_eq!(gpu.cuStreamBeginCapture_v2(stream, capture_mode), OK);
            assert_eq!(elsewhere(thread_mode), answer, "{capture_mode} {thread_mode}");
            let mut graph = 0;
            assert_eq!(
                gpu.cuStreamEndCapture(stream, &mut graph),
                if answer == OK { OK } else { 901 }
            );
        }
    }

    #[test]
    fn graphs_replay_what_was_captured() {
        let gpu = Gpu::new();
        let (mapped, stream) = (gpu.mapped(1), gpu.stream(0));
        assert_eq!(gpu.cuStreamBeginCapture_v2(0, GLOBAL), 900, "the legacy stream");
        assert_eq!(gpu.cuStreamEndCapture(stream, &mut 0), 401);
        assert_eq!(gpu.cuStreamBeginCapture_v2(stream, GLOBAL), OK);
        assert_eq!(gpu.cuStreamBeginCapture_v2(stream, GLOBAL), 401);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 5, 64, stream), OK);
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(mapped.0 + 64, mapped.0, 64, stream), OK);
        let graph = Calls::get(|graph| gpu.cuStreamEndCapture(stream, graph));
        assert_eq!(gpu.bytes_at(mapped.0 + 64, 1), [0], "capturing runs nothing");
        let exec = Calls::get(|exec| gpu.cuGraphInstantiateWithFlags(exec, graph, 0));
        assert_eq!(gpu.cuGraphDestroy(graph), OK);
        for _ in 0..2 {
            assert_eq!(gpu.cuGraphLaunch(exec, stream), OK);
            assert_eq!(gpu.bytes_at(mapped.0 + 64, 2), [5, 5]);
            assert_eq!(gpu.cuMemsetD8Async(mapped.0, 0, PAGE, 0), OK);
        }
        assert_eq!((gpu.cuGraphDestroy(exec), gpu.cuGraphExecDestroy(exec)), (400, OK));
        gpu.unmapped(mapped, 1);
    }

    #[test]
    fn the_legacy_stream_breaks_the_capture_of_a_blocking_one() {
        let gpu = Gpu::new();
        let (mapped, stream) = (gpu.mapped(1), gpu.stream(0));
        assert_eq!(gpu.cuStreamBeginCapture_v2(stream, RELAXED), OK);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 0, 64, 0), 906);
        assert_eq!(gpu.capture_status(stream), 2);
        assert_eq!(gpu.cuStreamEndCapture(stream, &mut 0), 901);
        gpu.unmapped(mapped, 1);
    }
}

mod contexts {
    use super::*;

    #[test]
    fn a_thread_without_a_context_can_do_virtual_memory_only() {
        let gpu = Gpu::new();
        assert_eq!(gpu.double.live().stack_depth, 1);
        assert_eq!(gpu.cuCtxPopCurrent_v2(&mut 0), OK);
        assert_eq!(Calls::get::<u64>(|context| gpu.cuCtxGetCurrent(context)), 0);
        assert_eq!(gpu.cuCtxPopCurrent_v2(&mut 0), 201);
        let mapped = gpu.mapped(1);
        gpu.unmapped(mapped, 1);
        assert_eq!(gpu.cuMemAlloc_v2(&mut 0, PAGE), 201);
        assert_eq!(gpu.cuStreamCreate(&mut 0, 1), 201);
        assert_eq!(gpu.cuMemGetInfo_v2(&mut 0, &mut 0), 201);
        assert_eq!(gpu.cuMemHostRegister_v2(4096, 4096, 1), 201);
        assert_eq!(gpu.cuMemsetD8Async(mapped.0, 0, 64, 0), 201);
        assert_eq!(gpu.cuCtxSetCurrent(gpu.context), OK);
        assert_eq!(gpu.cuCtxSetCurrent(gpu.context), OK, "replaces");
        assert_eq!(gpu.double.live().stack_depth, 1);
        assert_eq!(gpu.cuCtxPushCurrent_v2(12345), 201);
    }

    #[test]
    fn the_last_release_ends_the_context_and_not_its_handles() {
        let gpu = Gpu::new();
        assert_eq!(gpu.nvmlInit_v2(), OK);
        let handle = gpu.create(PAGE);
        Calls::get::<u64>(|at| gpu.cuMemAlloc_v2(at, PAGE));
        gpu.stream(0);
        gpu.event();
        gpu.pinned(64);
        digest_function(*gpu);
        let used = gpu.nvml_memory().used;
        Calls::get::<u64>(|context| gpu.cuDevicePrimaryCtxRetain(context, 0));
        assert_eq!(gpu.double.live().contexts_retained, 2);
        assert_eq!(gpu.cuDevicePrimaryCtxRelease_v2(0), OK);
        assert_eq!(gpu.cuMemGetInfo_v2(&mut 0, &mut 0), OK);
        assert_eq!(gpu.cuDevicePrimaryCtxRelease_v2(0), OK);
        let left = Live { handles: 1, unreleased_handles: 1, stack_depth: 1, ..Live::default() };
        assert_eq!(gpu.double.live(), left);
        assert_eq!(
            gpu.nvml_memory().used,
            used - PAGE - 64 * MIB,
            "the allocation and the context"
        );
        assert_eq!(gpu.cuDevicePrimaryCtxRelease_v2(0), 201);
        let (mut flags, mut active) = (7, 7);
        assert_eq!(gpu.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), OK);
        assert_eq!(active, 0);
        assert_eq!(gpu.cuCtxPushCurrent_v2(gpu.context), OK, "also when it is gone");
        assert_eq!(gpu.cuMemGetInfo_v2(&mut 0, &mut 0), 709);
        assert_eq!(gpu.cuMemRelease(handle), OK);
        assert_eq!(gpu.nvmlShutdown(), OK);
    }

    #[test]
    fn a_device_says_what_it_is() {
        let gpu = Gpu::new();
        let mut name = [0; 64];
        assert_eq!(gpu.cuDeviceGetName(name.as_mut_ptr(), 64, 0), OK);
        // SAFETY: the double ended it with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().expect("text");
        assert!(name.contains("test tool"), "{name}");
        let attribute =
            |which| Calls::get::<i32>(|value| gpu.cuDeviceGetAttribute(value, which, 0));
        assert_eq!((attribute(75), attribute(76), attribute(16), attribute(102)), (9, 0, 4, 1));
        assert_eq!(gpu.cuDeviceGet(&mut 0, 1), 101);
        let total = Calls::get::<u64>(|total| gpu.cuDeviceTotalMem_v2(total, 0));
        assert_eq!(total, (4 << 30) - 32 * MIB, "without what the driver reserves");
        let mut text = std::ptr::null();
        assert_eq!(gpu.cuGetErrorName(801, &mut text), OK);
        // SAFETY: a static string of the double.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_NOT_SUPPORTED");
        assert_eq!(gpu.cuGetErrorName(54321, &mut text), 1);
    }
}

mod faults {
    use super::*;

    #[test]
    fn calls_fail_as_asked_and_are_counted_in_order_of_first_use() {
        let gpu = Gpu::new();
        gpu.double.fail_nth("cuMemCreate", 2, 2);
        gpu.double.fail_always("cuStreamCreate", 304);
        gpu.double.reset_calls();
        let first = gpu.create(PAGE);
        assert_eq!(gpu.cuStreamCreate(&mut 0, 1), 304);
        assert_eq!(gpu.cuMemCreate(&mut 0, PAGE, &prop(), 0), 2);
        let third = gpu.create(PAGE);
        assert_eq!(gpu.cuStreamCreate(&mut 0, 1), 304);
        let counted = [("cuMemCreate".to_owned(), 3), ("cuStreamCreate".to_owned(), 2)];
        assert_eq!(gpu.double.calls(), counted);
        gpu.double.clear_faults();
        assert_eq!(gpu.cuStreamDestroy_v2(gpu.stream(1)), OK);
        assert_eq!((gpu.cuMemRelease(first), gpu.cuMemRelease(third)), (OK, OK));
    }

    #[test]
    #[should_panic(expected = "has no cuMemCrate")]
    fn a_fault_for_a_name_that_is_not_there_is_a_mistake() {
        Double::take().fail_nth("cuMemCrate", 1, 2);
    }

    #[test]
    fn a_turn_leaves_the_next_one_as_it_was() {
        Double::take().configure("total=1GiB,oom_at=2MiB,fail=cuMemCreate:2,foreign=5:1MiB");
        let gpu = Gpu::new();
        assert_eq!(
            Calls::get::<u64>(|total| gpu.cuDeviceTotalMem_v2(total, 0)),
            (4 << 30) - 32 * MIB
        );
        assert_eq!(gpu.cuMemRelease(gpu.create(PAGE)), OK);
    }
}

mod nvml {
    use super::*;

    #[test]
    fn readings_add_up_and_are_the_drivers() {
        let gpu = Gpu::new();
        assert_eq!(gpu.nvmlDeviceGetHandleByIndex_v2(0, &mut 0), 1, "not initialised");
        assert_eq!(gpu.nvmlInit_v2(), OK);
        let handle = gpu.create(3 * PAGE);
        gpu.double.configure("foreign=77:100MiB,foreign=78:1MiB,unattributed=5MiB");
        let memory = gpu.nvml_memory();
        assert_eq!((memory.total, memory.reserved), (4 << 30, 32 * MIB));
        assert_eq!(memory.used, 64 * MIB + 3 * PAGE + 106 * MIB);
        assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
        assert_eq!(memory.free, gpu.free_bytes());
        let (me, mine) = (std::process::id(), 64 * MIB + 3 * PAGE);
        assert_eq!(gpu.nvml_processes(), [(me, mine), (77, 100 * MIB), (78, MIB)]);
        gpu.double.configure("accounting=off,pid_offset=-1,foreign=off");
        assert_eq!(gpu.nvml_processes(), [(me - 1, u64::MAX)]);
        let mut count = 0;
        let null = std::ptr::null_mut();
        assert_eq!(
            gpu.nvmlDeviceGetComputeRunningProcesses_v3(gpu.nvml_device(), &mut count, null),
            7
        );
        assert_eq!(count, 1);
        assert_eq!(gpu.cuMemRelease(handle), OK);
        assert_eq!((gpu.nvmlShutdown(), gpu.nvmlShutdown()), (OK, 1));
    }

    #[test]
    fn a_device_is_found_by_its_names() {
        let gpu = Gpu::new();
        assert_eq!(gpu.nvmlInit_v2(), OK);
        let mut uuid = [0; 96];
        assert_eq!(gpu.nvmlDeviceGetUUID(gpu.nvml_device(), uuid.as_mut_ptr(), 96), OK);
        let found = Calls::get(|device| gpu.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), device));
        assert_eq!(found, gpu.nvml_device());
        assert_eq!(gpu.nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), &mut 0), 6);
        assert_eq!(gpu.nvmlDeviceGetName(found, uuid.as_mut_ptr(), 4), 7);
        assert_eq!(gpu.nvmlShutdown(), OK);
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "it did not come to pass in a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tests with several processes: each is this program again, as an *actor* that does
/// what it is told on its standard input and answers on its standard output.
mod processes {
    use super::*;

    const ACTOR: &str = "LOWTIDE_DOUBLE_TEST_ACTOR";
    const LIMIT: Duration = Duration::from_secs(60);

    struct Actor {
        child: Child,
        orders: ChildStdin,
        answers: Receiver<String>,
    }

    impl Actor {
        fn new(machine: &tempfile::TempDir, settings: &str) -> Actor {
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "processes::actor", "--nocapture", "--test-threads=1"])
                .env(ACTOR, "1")
                .env("RUST_BACKTRACE", "0")
                .env("LOWTIDE_DOUBLE", settings)
                .env("LOWTIDE_DOUBLE_STATE", machine.path().join("machine"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program runs");
            let (sender, answers) = channel();
            let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            // The test harness prints too; answers begin with a mark of ours.
            let lines = lines.map_while(Result::ok);
            let mut answers_of =
                lines.filter_map(|line| Some(line.split_once("=> ")?.1.to_owned()));
            std::thread::spawn(move || answers_of.try_for_each(|answer| sender.send(answer)));
            Actor { orders: child.stdin.take().expect("piped"), child, answers }
        }

        fn started(machine: &tempfile::TempDir, settings: &str) -> Actor {
            let mut actor = Actor::new(machine, settings);
            assert_eq!((actor.ask("init"), actor.ask("context")), ("0".into(), "0".into()));
            actor
        }

        fn tell(&mut self, order: &str) {
            writeln!(self.orders, "{order}").expect("the actor listens");
        }

        fn ask(&mut self, order: &str) -> String {
            self.tell(order);
            self.hear(order)
        }

        fn hear(&self, order: &str) -> String {
            self.answers.recv_timeout(LIMIT).unwrap_or_else(|why| panic!("{order}: {why}"))
        }

        fn number(&mut self, order: &str) -> u64 {
            let answer = self.ask(order);
            answer.parse().unwrap_or_else(|_| panic!("{order}: {answer}"))
        }

        fn pid(&self) -> u32 {
            self.child.id()
        }
    }

    impl Drop for Actor {
        fn drop(&mut self) {
            // It may be gone already, or blocked for good.
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }

    /// Not a test: the other side of [`Actor`].
    #[test]
    fn actor() {
        if std::env::var_os(ACTOR).is_none() {
            return;
        }
        let mut stage = Stage {
            calls: Calls(Double::load()),
            context: 0,
            at: 0,
            pinned: 0,
            done: Arc::default(),
        };
        for order in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = order.split(' ').collect();
            println!("=> {}", stage.play(words[0], words.get(1), words.get(2)));
        }
    }

    struct Stage {
        calls: Calls,
        context: u64,
        at: u64,
        pinned: usize,
        done: Arc<Mutex<Vec<String>>>,
    }

    impl Stage {
        fn play(&mut self, order: &str, first: Option<&&str>, second: Option<&&str>) -> String {
            let calls = self.calls;
            let number =
                |word: Option<&&str>| word.map_or(0, |word| word.parse::<u64>().expect("a number"));
            let (one, two) = (number(first.filter(|_| order != "begin")), number(second));
            let pid = i32::try_from(one).unwrap_or(0);
            let code = match order {
                "init" => calls.cuInit(0),
                "count" => calls.cuDeviceGetCount(&mut 0),
                "context" => {
                    let retained = calls.cuDevicePrimaryCtxRetain(&mut self.context, 0);
                    retained.max(calls.cuCtxSetCurrent(self.context))
                }
                "create" => calls.cuMemCreate(&mut 0, one, &prop(), 0),
                "free" => return calls.free_bytes().to_string(),
                "state" => {
                    let mut state = -1;
                    let code = calls.cuCheckpointProcessGetState(pid, &mut state);
                    return format!("{code}:{state}");
                }
                "lock" => {
                    let mut args = [0; 16];
                    args[0] = u32::try_from(two).expect("ms");
                    calls.cuCheckpointProcessLock(pid, &args)
                }
                // Locks even if somebody else is at it for a moment.
                "insist" => loop {
                    match calls.cuCheckpointProcessLock(pid, std::ptr::null()) {
                        401 => std::thread::yield_now(),
                        code => break code,
                    }
                },
                "checkpoint" => calls.cuCheckpointProcessCheckpoint(pid, 0),
                "restore" => calls.cuCheckpointProcessRestore(pid, 0),
                "unlock" => calls.cuCheckpointProcessUnlock(pid, 0),
                "processes" => {
                    assert_eq!(calls.nvmlInit_v2(), OK);
                    let mut all = calls.nvml_processes();
                    all.sort_unstable();
                    return format!("{all:?}");
                }
                "prepare" => {
                    self.at = calls.mapped(1).0;
                    self.pinned = calls.pinned(64);
                    OK
                }
                "copy" => calls.cuMemcpyDtoHAsync_v2(self.pinned, self.at, 64, 0),
                "sync" => calls.cuCtxSynchronize(),
                "begin" => return self.begin(first.expect("a call")),
                "done" => return self.done.lock().expect("no panic").join(" "),
                _ => panic!("no such order: {order}"),
            };
            code.to_string()
        }

        /// Makes a call on a thread, and answers once the double has seen it.
        fn begin(&self, name: &str) -> String {
            let (calls, at, context, done) =
                (self.calls, self.at, self.context, Arc::clone(&self.done));
            let counted = move || calls.0.calls().iter().map(|(_, count)| count).sum::<u64>();
            let before = counted();
            let name = name.to_owned();
            std::thread::spawn(move || {
                let code = match name.as_str() {
                    "init" => calls.cuInit(0),
                    "create" => calls.cuMemCreate(&mut 0, PAGE, &prop(), 0),
                    "fill" => {
                        calls.cuCtxSetCurrent(context);
                        calls.cuMemsetD8Async(at, 1, 64, 0)
                    }
                    "release-none" => calls.cuMemRelease(u64::MAX),
                    "unmap-none" => calls.cuMemUnmap(u64::MAX, PAGE),
                    "reserve" => calls.cuMemAddressReserve(&mut 0, PAGE, 0, 0, 0),
                    "version" => calls.cuDriverGetVersion(&mut 0),
                    "push" => calls.cuCtxPushCurrent_v2(context),
                    "info" => {
                        calls.cuCtxSetCurrent(context);
                        calls.cuMemGetInfo_v2(&mut 0, &mut 0)
                    }
                    _ => panic!("no such call: {name}"),
                };
                done.lock().expect("no panic").push(format!("{name}:{code}"));
            });
            wait_until(move || counted() > before);
            "begun".to_owned()
        }
    }

    fn machine() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn nothing_works_before_init_and_settings_come_from_the_environment() {
        let machine = machine();
        let mut actor = Actor::new(&machine, "total=1GiB,context=100MiB,fail=cuMemCreate@2:2");
        assert_eq!((actor.ask("count"), actor.ask("create 2097152")), ("3".into(), "3".into()));
        assert_eq!((actor.ask("init"), actor.ask("context")), ("0".into(), "0".into()));
        assert_eq!(actor.number("free"), (1024 - 32 - 100) * MIB);
        // The fault was armed at the start, and the call before `cuInit` was the first.
        assert_eq!(
            (actor.ask("create 2097152"), actor.ask("create 2097152")),
            ("2".into(), "0".into())
        );
    }

    #[test]
    fn processes_share_the_device_and_leave_it_when_they_are_killed() {
        let machine = machine();
        let mut first = Actor::started(&machine, "total=1GiB");
        let mut second = Actor::started(&machine, "");
        let empty = (1024 - 32 - 128) * MIB;
        assert_eq!(first.number("free"), empty);
        assert_eq!(first.ask(&format!("create {}", 600 * MIB)), "0");
        assert_eq!(second.number("free"), empty - 600 * MIB);
        assert_eq!(second.ask(&format!("create {}", 600 * MIB)), "2");
        let mut expected = [(first.pid(), 664 * MIB), (second.pid(), 64 * MIB)];
        expected.sort_unstable();
        assert_eq!(second.ask("processes"), format!("{expected:?}"));
        first.child.kill().expect("a child of ours");
        // Not reaped yet: its memory is back all the same, once the kernel ended it.
        let limit = Instant::now() + LIMIT;
        while second.number("free") != empty + 64 * MIB {
            assert!(Instant::now() < limit, "a killed process still holds memory");
        }
        assert_eq!(second.ask("processes"), format!("{:?}", [(second.pid(), 64 * MIB)]));
    }

    #[test]
    fn a_checkpoint_takes_a_process_off_the_device_and_back() {
        let machine = machine();
        let mut target = Actor::started(&machine, "");
        let mut helper = Actor::new(&machine, "");
        let pid = target.pid();
        assert_eq!(helper.ask(&format!("state {pid}")), "3:-1", "the helper called no cuInit");
        assert_eq!((helper.ask("init"), helper.ask("context")), ("0".into(), "0".into()));
        assert_eq!(helper.ask("state 1"), "3:-1", "a process that does not use the driver");
        assert_eq!(helper.ask("lock 999999999 0"), "304");
        let with = helper.number("free");
        assert_eq!(target.ask(&format!("create {}", 8 * PAGE)), "0");

        for (order, answer, state) in [
            ("restore", "401", 0),
            ("checkpoint", "401", 0),
            ("unlock", "401", 0),
            ("lock", "0", 1),
            ("lock", "401", 1),
            ("restore", "401", 1),
            ("checkpoint", "0", 2),
            ("unlock", "401", 2),
            ("checkpoint", "401", 2),
            ("lock", "401", 2),
        ] {
            assert_eq!(helper.ask(&format!("{order} {pid} 100")), answer, "{order}");
            assert_eq!(helper.ask(&format!("state {pid}")), format!("0:{state}"), "after {order}");
        }
        assert_eq!(helper.number("free"), with + 64 * MIB, "context and memory are off");
        assert_eq!(helper.ask("processes"), format!("{:?}", [(helper.pid(), 64 * MIB)]));
        assert_eq!(helper.ask(&format!("restore {pid}")), "0");
        assert_eq!(helper.number("free"), with - 8 * PAGE);
        assert_eq!(helper.ask(&format!("state {pid}")), "0:1");
        assert_eq!(helper.ask(&format!("unlock {pid}")), "0");
        assert_eq!(target.ask("sync"), "0");
    }

    #[test]
    fn a_locked_process_waits_in_some_calls_and_not_in_others() {
        let machine = machine();
        let mut target = Actor::started(&machine, "");
        assert_eq!(target.ask("prepare"), "0");
        let pid = target.pid();
        let mut helper = Actor::started(&machine, "");
        assert_eq!(helper.ask(&format!("lock {pid}")), "0");
        let waits = ["init", "create", "fill", "release-none", "unmap-none"];
        let goes_on = ["reserve", "version", "push", "info"];
        for name in waits.iter().chain(&goes_on) {
            assert_eq!(target.ask(&format!("begin {name}")), "begun");
        }
        let has = |done: &str, name: &str| {
            done.split(' ').any(|call| call.starts_with(&format!("{name}:")))
        };
        let limit = Instant::now() + LIMIT;
        let done = loop {
            let done = target.ask("done");
            if goes_on.iter().all(|name| has(&done, name)) {
                break done;
            }
            assert!(Instant::now() < limit, "{done}");
        };
        assert!(!waits.iter().any(|name| has(&done, name)), "{done}");
        assert_eq!(helper.ask(&format!("checkpoint {pid}")), "0");
        assert_eq!(helper.ask(&format!("restore {pid}")), "0");
        assert!(!waits.iter().any(|name| has(&target.ask("done"), name)));
        assert_eq!(helper.ask(&format!("unlock {pid}")), "0");
        loop {
            let done = target.ask("done");
            if waits.iter().all(|name| has(&done, name)) {
                assert!(done.contains("create:0") && done.contains("fill:0"), "{done}");
                break;
            }
            assert!(Instant::now() < limit, "{done}");
        }
    }

    #[test]
    fn a_lock_waits_for_work_in_flight_and_gives_up_in_time() {
        let machine = machine();
        let mut target = Actor::started(&machine, "late_us=60000000");
        assert_eq!((target.ask("prepare"), target.ask("copy")), ("0".into(), "0".into()));
        let mut helper = Actor::started(&machine, "");
        let pid = target.pid();
        assert_eq!(helper.ask(&format!("lock {pid} 50")), "600");
        assert_eq!(helper.ask(&format!("state {pid}")), "0:0");
        assert_eq!(target.ask(&format!("create {PAGE}")), "0", "it goes on");
        helper.tell(&format!("lock {pid} 0"));
        assert_eq!(target.ask("sync"), "0");
        assert_eq!(helper.hear("lock"), "0");
        assert_eq!(helper.ask(&format!("state {pid}")), "0:1");
    }

    #[test]
    fn a_lock_whose_waiter_dies_is_no_lock() {
        let machine = machine();
        let mut target = Actor::started(&machine, "late_us=60000000");
        assert_eq!((target.ask("prepare"), target.ask("copy")), ("0".into(), "0".into()));
        let pid = target.pid();
        let mut helper = Actor::started(&machine, "");
        helper.tell(&format!("insist {pid} 0"));
        let mut witness = Actor::started(&machine, "");
        let limit = Instant::now() + LIMIT;
        while witness.ask(&format!("lock {pid} 1")) != "401" {
            assert!(Instant::now() < limit, "the helper never began to lock");
        }
        drop(helper);
        assert_eq!(target.ask(&format!("create {PAGE}")), "0", "it goes on");
        assert_eq!(target.ask("sync"), "0");
        assert_eq!(witness.ask(&format!("lock {pid} 0")), "0");
    }

    #[test]
    fn a_restore_without_room_leaves_the_process_failed() {
        let machine = machine();
        let mut target = Actor::started(&machine, "total=1GiB");
        assert_eq!(target.ask(&format!("create {}", 600 * MIB)), "0");
        let mut helper = Actor::started(&machine, "");
        let pid = target.pid();
        assert_eq!(helper.ask(&format!("lock {pid}")), "0");
        assert_eq!(helper.ask(&format!("checkpoint {pid}")), "0");
        assert_eq!(helper.ask(&format!("create {}", 600 * MIB)), "0");
        assert_eq!(helper.ask(&format!("restore {pid}")), "2");
        assert_eq!(helper.ask(&format!("state {pid}")), "0:3");
        assert_eq!(helper.ask(&format!("unlock {pid}")), "401");
    }

    #[test]
    fn a_process_can_checkpoint_itself() {
        let gpu = Gpu::new();
        let me = std::process::id().cast_signed();
        let none = std::ptr::null();
        assert_eq!(gpu.cuCheckpointProcessLock(me, none), OK);
        assert_eq!(gpu.cuCheckpointProcessCheckpoint(me, 0), OK);
        assert_eq!(gpu.cuCheckpointProcessRestore(me, 0), OK);
        assert_eq!(gpu.cuCheckpointProcessUnlock(me, 0), OK);
        assert_eq!(gpu.cuMemRelease(gpu.create(PAGE)), OK);
    }

    #[test]
    fn a_state_file_of_something_else_is_refused() {
        let machine = machine();
        std::fs::write(machine.path().join("machine"), [7; 4096]).expect("a file");
        let mut actor = Actor::new(&machine, "");
        assert_eq!(actor.ask("init"), "999");
    }
}
