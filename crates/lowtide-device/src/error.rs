//! The errors of devices. Variants carry facts. `Display` gives the conclusion first, then the facts,
//! then what to do; lists of what was tried come last.

use std::io;
use std::path::{Path, PathBuf};

use lowtide_types::{Bytes, DeviceId};

use crate::cuda::version::CudaVersion;
use crate::facts::{Attempt, DriverLibrary, HostLimit, RangeProblem, SizeRule};

/// The result of device work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine has no such device.
    #[error("there is no device {wanted} on this machine; it has {}", list(known))]
    UnknownDevice {
        /// The device that was asked for.
        wanted: DeviceId,
        /// The devices of this machine.
        known: Vec<DeviceId>,
    },

    /// A driver library was not found or did not load.
    #[error("{}", no_library(*library, tried))]
    NoLibrary {
        /// The library that was looked for.
        library: DriverLibrary,
        /// Every name tried, with the loader's message.
        tried: Vec<Attempt>,
    },

    /// The driver lacks a function.
    #[error(
        "the CUDA driver has no {name}, which came with CUDA {since}; install driver {} or newer{}",
        since.driver_release(),
        or_another(library.as_deref())
    )]
    MissingEntryPoint {
        /// The function's exported name.
        name: &'static str,
        /// The CUDA version that brought it.
        since: CudaVersion,
        /// The file that was loaded; `None` if the driver's functions were handed over.
        library: Option<PathBuf>,
    },

    /// The driver is older than lowtide needs.
    #[error(
        "the CUDA driver is too old: it has CUDA {found}, and lowtide needs {needed}; install driver \
         {} or newer",
        needed.driver_release()
    )]
    DriverTooOld {
        /// The version of the driver.
        found: CudaVersion,
        /// The oldest version that works.
        needed: CudaVersion,
    },

    /// The GPU or its driver has no virtual memory management.
    #[error("{device} cannot be used: {name} has no virtual memory management")]
    NoVirtualMemory {
        /// The device that was asked for.
        device: DeviceId,
        /// The name of the GPU.
        name: String,
    },

    /// The device of a borrowed context is not among those that the driver counts.
    #[error("the context cannot be used: the driver does not list its device")]
    UnknownContext,

    /// A driver call failed.
    #[error("{call} failed{}: {name} ({code}){}", on(*device), hint(*code))]
    Driver {
        /// The device, if the call was made for one.
        device: Option<DeviceId>,
        /// The entry point that was called.
        call: &'static str,
        /// The driver's result code.
        code: i32,
        /// The driver's name for the code.
        name: String,
    },

    /// The device has no memory for a chunk: its driver said so, or for `host` its budget or the kernel.
    #[error(
        "{device} is out of memory: {requested} requested, {free} free of {total}; {}",
        who_uses_it(*device)
    )]
    OutOfMemory {
        /// The device that was asked.
        device: DeviceId,
        /// The size of the chunk.
        requested: Bytes,
        /// The memory that the device reports as free.
        free: Bytes,
        /// The whole memory of the device.
        total: Bytes,
    },

    /// The machine has too little host memory left: our own cap, checked before the kernel is asked.
    #[error(
        "not enough host memory: {requested} needed, {left} left ({limit}{}); free some or ask for less",
        less_promised(*promised)
    )]
    NoHostHeadroom {
        /// The size that was asked for.
        requested: Bytes,
        /// The memory that is left, less a margin for the machine and what was promised to others.
        left: Bytes,
        /// The limit that is nearest.
        limit: HostLimit,
        /// The memory that this user's processes were granted and have not written yet.
        promised: Bytes,
    },

    /// A size or an offset that breaks a rule of the device.
    #[error("{size:?} is no valid size for `{operation}` on {device}: {rule}")]
    BadSize {
        /// The device that was asked.
        device: DeviceId,
        /// The operation that was tried.
        operation: &'static str,
        /// The size or offset given.
        size: Bytes,
        /// The rule that it breaks.
        rule: SizeRule,
    },

    /// A range that cannot be used for an operation.
    #[error("{problem}: `{operation}` of {size} at offset {offset:?} on {device}{}", problem.hint())]
    BadRange {
        /// The device that was asked.
        device: DeviceId,
        /// The operation that was tried.
        operation: &'static str,
        /// The offset in the reservation or the host memory.
        offset: Bytes,
        /// The size of the range.
        size: Bytes,
        /// The reason why it cannot be used.
        problem: RangeProblem,
    },

    /// An argument that belongs to another device.
    #[error("the {what} belongs to another device: `{operation}` on {device}")]
    OtherDevice {
        /// The device that was asked.
        device: DeviceId,
        /// The operation that was tried.
        operation: &'static str,
        /// The argument that belongs elsewhere.
        what: &'static str,
    },

    /// Work in a forked child with something that was made before the fork.
    #[error(
        "this process was forked, and what was made before belongs to its parent; make a new one here, \
         or start a new program instead of a fork (in Python: the `spawn` start method)"
    )]
    Forked,

    /// A thread panicked in the middle of a change of this, so its tables may be half-written.
    #[error(
        "the {what} is broken: a thread panicked while it was changed; drop it and make a new one"
    )]
    Broken {
        /// The thing that is broken.
        what: &'static str,
    },

    /// An operation that needs memory, on a device that has none.
    #[error("a dry run has no memory: `{operation}` is not possible")]
    DryRun {
        /// The operation that was tried.
        operation: &'static str,
    },

    /// The operating system refused.
    #[error("{operation} failed: {source}")]
    Os {
        /// The operation that was tried.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },

    /// NVML answered with an error.
    #[error("NVML could not report {question}: {answer}")]
    Nvml {
        /// The number or name that was asked for.
        question: &'static str,
        /// The message of NVML's error.
        answer: String,
    },

    /// A device that a framework drives did not report a number.
    #[error("{device} could not report {question}: {answer}")]
    NotReported {
        /// The device that was asked.
        device: DeviceId,
        /// The number that was asked for.
        question: &'static str,
        /// The error that came instead.
        answer: String,
    },
}

impl Error {
    /// Makes the operating system's error for an operation one of a device.
    pub(crate) fn os<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Os { operation, source: source.into() }
    }

    /// Returns whether the context is lost, and with it everything that this process has on the
    /// device. No later call can succeed there, so nothing is worth a second try.
    pub fn is_context_lost(&self) -> bool {
        let Error::Driver { code, .. } = self else { return false };
        matches!(code, 4 | 700 | 702 | 709 | 710 | 714..=719)
    }

    /// Returns whether the device is full, so that freeing memory and trying again may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }
}

fn list(known: &[DeviceId]) -> String {
    known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

// A file that is there but does not load needs another cure than one that is missing.
fn no_library(library: DriverLibrary, tried: &[Attempt]) -> String {
    let (without, name) = (library.without(), library.name());
    if tried.is_empty() {
        return format!("{without}: there is no {name} for this system");
    }
    let broken = tried.iter().find_map(|attempt| {
        let failure = attempt.failure.as_deref()?;
        (!failure.contains("No such file")).then_some(failure)
    });
    let (problem, cure) = match broken {
        None => ("is not installed".to_owned(), "install"),
        Some(failure) => (format!("does not load ({failure})"), "reinstall"),
    };
    let names: Vec<_> = tried.iter().map(|attempt| attempt.name.as_str()).collect();
    format!(
        "{without}: the {name} {problem}; {cure} the NVIDIA driver, or set {} to the library's path \
         (looked for {})",
        library.variable(),
        names.join(", ")
    )
}

fn or_another(library: Option<&Path>) -> String {
    library.map_or_else(String::new, |path| {
        let variable = DriverLibrary::Cuda.variable();
        format!(", or set {variable} to another library's path (loaded {})", path.display())
    })
}

fn less_promised(promised: Bytes) -> String {
    if promised == Bytes::ZERO {
        return String::new();
    }
    format!(", less {promised} promised to others")
}

fn who_uses_it(device: DeviceId) -> &'static str {
    match device {
        DeviceId::Cuda(_) => "`lowtide ps` shows which processes use the rest",
        DeviceId::Host => "this process uses the rest of the budget",
        DeviceId::DryRun => "give the dry run more memory",
        DeviceId::Named(_) => "its framework knows what uses the rest",
    }
}

fn on(device: Option<DeviceId>) -> String {
    device.map(|device| format!(" on {device}")).unwrap_or_default()
}

fn hint(code: i32) -> &'static str {
    match code {
        2 => {
            "; the device or the machine is out of memory: `lowtide ps` shows which processes use it"
        }
        100 => "; no GPU is visible: check CUDA_VISIBLE_DEVICES",
        304 => "; the operating system refused: check permissions on /dev/nvidia*",
        700 | 719 => "; the context is lost: end this process",
        803 => "; driver and kernel module differ in version: reboot or reload the module",
        900 | 901 => "; a CUDA graph is being captured: try again when the capture has ended",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(name: &str, failure: &str) -> Attempt {
        Attempt { name: name.to_owned(), failure: Some(failure.to_owned()) }
    }

    #[test]
    fn a_missing_driver_is_told_with_the_conclusion_first_and_the_names_last() {
        let absent = "libcuda.so.1: cannot open shared object file: No such file or directory";
        let tried = vec![attempt("libcuda.so.1", absent), attempt("libcuda.so", absent)];
        let error = Error::NoLibrary { library: DriverLibrary::Cuda, tried };
        assert_eq!(
            error.to_string(),
            "no GPU can be used: the CUDA driver is not installed; install the NVIDIA driver, or \
             set LOWTIDE_CUDA_LIBRARY to the library's path (looked for libcuda.so.1, libcuda.so)"
        );
    }

    #[test]
    fn a_library_that_does_not_load_is_told_in_the_loaders_words() {
        let tried = vec![attempt("/opt/libcuda.so.1", "/opt/libcuda.so.1: invalid ELF header")];
        let error = Error::NoLibrary { library: DriverLibrary::Cuda, tried };
        assert_eq!(
            error.to_string(),
            "no GPU can be used: the CUDA driver does not load (/opt/libcuda.so.1: invalid ELF \
             header); reinstall the NVIDIA driver, or set LOWTIDE_CUDA_LIBRARY to the library's \
             path (looked for /opt/libcuda.so.1)"
        );
    }

    #[test]
    fn a_missing_function_is_told_with_the_driver_that_has_it() {
        let since = CudaVersion::new(12, 8);
        let library = Some("/opt/libcuda.so.1".into());
        let error = Error::MissingEntryPoint { name: "cuLaunchKernel", since, library };
        assert_eq!(
            error.to_string(),
            "the CUDA driver has no cuLaunchKernel, which came with CUDA 12.8; install driver 570 \
             or newer, or set LOWTIDE_CUDA_LIBRARY to another library's path (loaded \
             /opt/libcuda.so.1)"
        );
    }

    #[test]
    fn a_bad_range_is_told_with_its_problem_first() {
        let error = Error::BadRange {
            device: DeviceId::Host,
            operation: "unmap",
            offset: Bytes::ZERO,
            size: Bytes::mib(2),
            problem: RangeProblem::InUse,
        };
        assert_eq!(
            error.to_string(),
            "work in flight or another thread uses the range: `unmap` of 2.0 MiB at offset 0 B on \
             host; synchronise the stream first"
        );
    }
}
