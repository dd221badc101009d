//! NVML's functions, under the names that the driver exports. Thirteen of them are all that lowtide asks.
//!
//! All are looked up when NVML is loaded: a later look-up would take the loader's lock, and a program that is
//! woken while it loads a library holds that lock. A function that the driver does not have is an answer like any other
//! error of NVML.
#![allow(unsafe_code, reason = "calls a shared object")]

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use libloading::Library;

/// NVML's answer to a call: 0, or the code of an error.
type Code = i32;
const SUCCESS: Code = 0;
const INSUFFICIENT_SIZE: Code = 7;
/// Where the driver does not know how much memory a process has.
const NOT_AVAILABLE: u64 = u64::MAX;
/// No text of NVML is longer.
const TEXT_MOST: usize = 128;
/// Processes may come while they are counted.
const ROOM_FOR_MORE: usize = 8;
/// How often a list is asked for that grows meanwhile.
const TRIES: usize = 4;

/// A GPU, as NVML names it while it is initialised.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct Gpu(*mut ());

/// The layout of `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    version: u32,
    pub(super) total: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
    used: u64,
}

impl Memory {
    /// As NVML tells the versions of a structure apart: by its size and its number.
    const VERSION: u32 = size_of::<Memory>() as u32 | 2 << 24;
}

/// The layout of `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Process {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// A process that uses a GPU, and its memory there if the driver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) pid: u32,
    pub(super) used: Option<u64>,
}

/// The lists of processes that NVML has.
#[derive(Debug, Clone, Copy)]
pub(super) enum List {
    Compute,
    Graphics,
    /// Clients of the multi-process service.
    Mps,
}

/// What NVML answers, or its error in words.
pub(super) type Answer<T> = Result<T, String>;

/// A function of NVML, if the driver has it.
struct Entry<F> {
    name: &'static str,
    function: Option<F>,
}

impl<F: Copy> Entry<F> {
    /// Looks a function up by its name.
    ///
    /// # Safety
    /// The function of this name has this signature.
    unsafe fn find(library: &'static Library, name: &'static str) -> Entry<F> {
        // SAFETY: the caller promises the signature, and the library stays.
        let found = unsafe { library.get::<F>(name.as_bytes()) };
        Entry { name, function: found.ok().map(|function| *function) }
    }

    fn get(&self) -> Answer<F> {
        let Entry { name, function } = self;
        function.ok_or_else(|| format!("the driver's NVML has no {name}: a newer driver has it"))
    }
}

type GetText = unsafe extern "C" fn(*mut c_char, u32) -> Code;
type GetTextOf = unsafe extern "C" fn(Gpu, *mut c_char, u32) -> Code;
type GetProcesses = unsafe extern "C" fn(Gpu, *mut u32, *mut Process) -> Code;

/// Declares the table of functions, and how it is filled.
macro_rules! functions {
    ($($field:ident: $name:literal $signature:ty,)*) => {
        /// The functions of a library that is never unloaded.
        pub(super) struct Functions {
            $($field: Entry<$signature>,)*
        }

        impl Functions {
            fn of(library: &'static Library) -> Functions {
                // SAFETY: the signatures are those of NVML's header.
                unsafe { Functions { $($field: Entry::find(library, $name),)* } }
            }
        }
    };
}

functions! {
    init: "nvmlInit_v2" extern "C" fn() -> Code,
    shutdown: "nvmlShutdown" extern "C" fn() -> Code,
    error_string: "nvmlErrorString" extern "C" fn(Code) -> *const c_char,
    system_driver_version: "nvmlSystemGetDriverVersion" GetText,
    device_count: "nvmlDeviceGetCount_v2" unsafe extern "C" fn(*mut u32) -> Code,
    device_by_index: "nvmlDeviceGetHandleByIndex_v2" unsafe extern "C" fn(u32, *mut Gpu) -> Code,
    device_by_uuid: "nvmlDeviceGetHandleByUUID" unsafe extern "C" fn(*const c_char, *mut Gpu) -> Code,
    device_uuid: "nvmlDeviceGetUUID" GetTextOf,
    memory_info: "nvmlDeviceGetMemoryInfo_v2" unsafe extern "C" fn(Gpu, *mut Memory) -> Code,
    mig_mode: "nvmlDeviceGetMigMode" unsafe extern "C" fn(Gpu, *mut u32, *mut u32) -> Code,
    compute_processes: "nvmlDeviceGetComputeRunningProcesses_v3" GetProcesses,
    graphics_processes: "nvmlDeviceGetGraphicsRunningProcesses_v3" GetProcesses,
    mps_processes: "nvmlDeviceGetMPSComputeRunningProcesses_v3" GetProcesses,
}

impl Functions {
    /// Initialises NVML. [`Functions::shut_down`] undoes that.
    pub(super) fn initialise(library: &'static Library) -> Answer<Functions> {
        let functions = Functions::of(library);
        functions.checked(functions.init.get()?())?;
        Ok(functions)
    }

    /// Ends the use of NVML. Handles of GPUs mean nothing afterwards.
    pub(super) fn shut_down(&self) {
        if let Some(shutdown) = self.shutdown.function {
            shutdown();
        }
    }

    pub(super) fn driver_version(&self) -> Answer<String> {
        let get = self.system_driver_version.get()?;
        // SAFETY: there is room for as much as is said.
        self.text(|to, room| unsafe { get(to, room) })
    }

    pub(super) fn count(&self) -> Answer<u32> {
        let get = self.device_count.get()?;
        // SAFETY: it writes a number.
        self.got(0, |to| unsafe { get(to) })
    }

    pub(super) fn gpu_at(&self, index: u32) -> Answer<Gpu> {
        let get = self.device_by_index.get()?;
        // SAFETY: it writes a handle.
        self.got(Gpu(null_mut()), |to| unsafe { get(index, to) })
    }

    pub(super) fn gpu(&self, uuid: &str) -> Answer<Gpu> {
        let get = self.device_by_uuid.get()?;
        let uuid = CString::new(uuid).map_err(|error| error.to_string())?;
        // SAFETY: the text ends with a zero, and it writes a handle.
        self.got(Gpu(null_mut()), |to| unsafe { get(uuid.as_ptr(), to) })
    }

    pub(super) fn uuid(&self, gpu: Gpu) -> Answer<String> {
        let get = self.device_uuid.get()?;
        // SAFETY: NVML gave the handle, and there is room for as much as is said.
        self.text(|to, room| unsafe { get(gpu, to, room) })
    }

    pub(super) fn memory(&self, gpu: Gpu) -> Answer<Memory> {
        let get = self.memory_info.get()?;
        let empty = Memory { version: Memory::VERSION, ..Memory::default() };
        // SAFETY: NVML gave the handle, and the structure has the version that it says.
        self.got(empty, |to| unsafe { get(gpu, to) })
    }

    /// Returns whether a GPU is partitioned into instances.
    pub(super) fn is_partitioned(&self, gpu: Gpu) -> Answer<bool> {
        const ENABLED: u32 = 1;
        let get = self.mig_mode.get()?;
        let mut pending = 0;
        // SAFETY: NVML gave the handle, and it writes two numbers.
        let current = self.got(0, |to| unsafe { get(gpu, to, &raw mut pending) })?;
        Ok(current == ENABLED)
    }

    /// Returns a list of processes. What comes between the count and the list has room.
    pub(super) fn processes(&self, gpu: Gpu, list: List) -> Answer<Vec<Listed>> {
        let get = match list {
            List::Compute => self.compute_processes.get()?,
            List::Graphics => self.graphics_processes.get()?,
            List::Mps => self.mps_processes.get()?,
        };
        let mut found: Vec<Process> = Vec::new();
        for _ in 0..TRIES {
            let mut count = found.len() as u32;
            let to = if found.is_empty() { null_mut() } else { found.as_mut_ptr() };
            // SAFETY: NVML gave the handle, and there is room for as many as `count` says.
            let code = unsafe { get(gpu, &raw mut count, to) };
            if code == INSUFFICIENT_SIZE {
                found.resize(count as usize + ROOM_FOR_MORE, Process::default());
                continue;
            }
            self.checked(code)?;
            found.truncate(count as usize);
            return Ok(found.into_iter().map(listed).collect());
        }
        Err("the list of processes grew faster than it was read".to_owned())
    }

    fn checked(&self, code: Code) -> Answer<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.words(code)) }
    }

    fn got<T>(&self, mut value: T, get: impl FnOnce(*mut T) -> Code) -> Answer<T> {
        self.checked(get(&raw mut value))?;
        Ok(value)
    }

    fn text(&self, get: impl FnOnce(*mut c_char, u32) -> Code) -> Answer<String> {
        let mut text = [0_u8; TEXT_MOST];
        self.checked(get(text.as_mut_ptr().cast(), TEXT_MOST as u32))?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|error| error.to_string())?;
        Ok(text.to_string_lossy().into_owned())
    }

    fn words(&self, code: Code) -> String {
        let number = format!("error {code}");
        let words = self.error_string.function.map_or(null(), |get| get(code));
        if words.is_null() {
            return number;
        }
        // SAFETY: it is a text of NVML's own, which ends with a zero and stays.
        let words = unsafe { CStr::from_ptr(words) };
        format!("{} ({number})", words.to_string_lossy())
    }
}

fn listed(Process { pid, used, .. }: Process) -> Listed {
    Listed { pid, used: (used != NOT_AVAILABLE).then_some(used) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_nvml_is_told_by_the_function_that_it_lacks() {
        // SAFETY: every program has it already.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let refused = Functions::initialise(Box::leak(Box::new(library))).err().unwrap();
        assert_eq!(refused, "the driver's NVML has no nvmlInit_v2: a newer driver has it");
    }
}
