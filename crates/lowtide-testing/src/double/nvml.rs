//! NVML over the machine's file: totals, and the memory of each process.
//!
//! It needs no context and no `cuInit`. As NVML has it, `total = reserved + used + free`.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::entry::entry;
use super::pointers::{CallResult, Out, Text};
use super::{device, faults, machine};

const UNINITIALIZED: i32 = 1;
const INVALID_ARGUMENT: i32 = 2;
const NOT_FOUND: i32 = 6;
const INSUFFICIENT_SIZE: i32 = 7;
const MISMATCHED_VERSION: i32 = 25;

const DRIVER_VERSION: &str = "580.159.04";
/// NVML's number for a value that is not available.
const NOT_AVAILABLE: u64 = u64::MAX;
/// The result of `NVML_STRUCT_VERSION(Memory, 2)`.
#[allow(clippy::cast_possible_truncation, reason = "the size of a small struct")]
const MEMORY_V2: u32 = size_of::<MemoryV2>() as u32 | 2 << 24;
/// The handle of device 0; the others follow. It must not be null.
const FIRST_DEVICE: usize = 0x4e56_0000;

static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// The layout of `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The layout of `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

fn index_of(device: usize) -> CallResult<usize> {
    initialised()?;
    let index = device.checked_sub(FIRST_DEVICE);
    index.filter(|index| *index < machine::get().devices()).ok_or(INVALID_ARGUMENT)
}

fn initialised() -> CallResult {
    if INITIALISED.load(SeqCst) == 0 { Err(UNINITIALIZED) } else { Ok(()) }
}

fn find(to: &Out<usize>, is_it: impl Fn(usize) -> bool) -> CallResult {
    initialised()?;
    let found = (0..machine::get().devices()).find(|index| is_it(*index));
    put(to, FIRST_DEVICE + found.ok_or(NOT_FOUND)?)
}

/// Writes a value, with NVML's code for a null.
fn put<T>(to: &Out<T>, value: T) -> CallResult {
    to.put(value).map_err(|_| INVALID_ARGUMENT)
}

fn put_text(to: &Out<c_char>, room: u32, text: &str) -> CallResult {
    let room = usize::try_from(room).unwrap_or(0);
    if text.len() >= room {
        return Err(INSUFFICIENT_SIZE);
    }
    to.put_text(text, room).map_err(|_| INVALID_ARGUMENT)
}

fn uuid_text(index: usize) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(device::uuid(index)));
    let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", groups.join("-"))
}

/// Returns all processes on the device, as NVML shows them to this process.
fn processes(device: usize) -> Vec<ProcessInfo> {
    let settings = faults::settings();
    let machine = machine::get().locked();
    let ours = machine.users(device).into_iter();
    let ours = ours.map(|(pid, used)| (pid.wrapping_add_signed(settings.pid_offset), used));
    let all = ours.chain(machine.foreigners(device));
    all.map(|(pid, used)| ProcessInfo {
        pid: u32::try_from(pid).unwrap_or(u32::MAX),
        used: if settings.accounting { used } else { NOT_AVAILABLE },
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    })
    .collect()
}

/// Returns what the neighbour that breathes has now: nothing at the first reading, all at the second.
fn breath() -> u64 {
    static READINGS: AtomicU32 = AtomicU32::new(0);
    let is_odd = READINGS.fetch_add(1, SeqCst) % 2 == 1;
    if is_odd { faults::settings().breathing } else { 0 }
}

/// Writes a list as NVML does: too little space is an error that tells how much is needed.
fn put_processes(all: &[ProcessInfo], count: &Out<u32>, to: &Out<ProcessInfo>) -> CallResult {
    let room = count.get().map_err(|_| INVALID_ARGUMENT)? as usize;
    put(count, u32::try_from(all.len()).unwrap_or(u32::MAX))?;
    if all.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    if all.is_empty() { Ok(()) } else { to.put_all(all, room).map_err(|_| INVALID_ARGUMENT) }
}

/// Returns the text of an NVML code.
#[allow(unsafe_code, non_snake_case, reason = "exported under the driver's own name")]
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: i32) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        MISMATCHED_VERSION => c"Function not found, or argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

entry! {
    fn nvmlInit_v2() {
        INITIALISED.fetch_add(1, SeqCst);
        Ok(())
    }
    fn nvmlShutdown() {
        let down = |count: u32| count.checked_sub(1);
        INITIALISED.fetch_update(SeqCst, SeqCst, down).map(drop).map_err(|_| UNINITIALIZED)
    }
    fn nvmlSystemGetDriverVersion(text: Out<c_char>, room: u32) {
        initialised()?;
        put_text(&text, room, DRIVER_VERSION)
    }
    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        initialised()?;
        put(&count, u32::try_from(machine::get().devices()).unwrap_or(0))
    }
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<usize>) {
        find(&device, |candidate| candidate == index as usize).map_err(|error| {
            if error == NOT_FOUND { INVALID_ARGUMENT } else { error }
        })
    }
    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<usize>) {
        let uuid = uuid.get().map_err(|_| INVALID_ARGUMENT)?;
        find(&device, |candidate| uuid_text(candidate) == uuid)
    }
    fn nvmlDeviceGetUUID(device: usize, text: Out<c_char>, room: u32) {
        put_text(&text, room, &uuid_text(index_of(device)?))
    }
    fn nvmlDeviceGetMemoryInfo_v2(device: usize, memory: Out<MemoryV2>) {
        let device = index_of(device)?;
        let version = memory.get().map_err(|_| INVALID_ARGUMENT)?.version;
        if version != MEMORY_V2 {
            return Err(MISMATCHED_VERSION);
        }
        let machine = machine::get();
        let (total, reserved) = (machine.total(), machine.reserved());
        let free = machine.locked().free(device).saturating_sub(breath());
        put(&memory, MemoryV2 { version, total, reserved, free, used: total - reserved - free })
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: usize, count: Out<u32>, to: Out<ProcessInfo>) {
        put_processes(&processes(index_of(device)?), &count, &to)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: usize, count: Out<u32>, to: Out<ProcessInfo>) {
        index_of(device)?;
        put_processes(&[], &count, &to)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: usize, count: Out<u32>, to: Out<ProcessInfo>) {
        let device = index_of(device)?;
        let clients = if faults::settings().mps { processes(device) } else { Vec::new() };
        put_processes(&clients, &count, &to)
    }
    fn nvmlDeviceGetMigMode(device: usize, current: Out<u32>, pending: Out<u32>) {
        index_of(device)?;
        let mode = u32::from(faults::settings().mig);
        put(&current, mode)?;
        put(&pending, mode)
    }
}
