//! What can go wrong at a device. Variants carry facts; `Display` says what happened, with
//! numbers, and what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cuda::version::CudaVersion;
use crate::headroom::HostLimit;
use crate::{Bytes, DeviceId};

/// The result of device work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One name under which a library was looked for, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The name or path given to the loader.
    pub name: String,
    /// What the loader said; `None` where it succeeded.
    pub failure: Option<String>,
}

/// What can go wrong at a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such device here.
    #[error("there is no device {wanted:?} here; this machine has {}", list(known))]
    UnknownDevice {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: Vec<DeviceId>,
    },

    /// Whoever tells of this device for somebody else could not.
    #[error("{device} could not tell {question}: {answer}")]
    NotTold {
        /// The device.
        device: DeviceId,
        /// What was to be known.
        question: &'static str,
        /// What was said instead.
        answer: String,
    },

    /// A driver library was not found or did not load.
    #[error(
        "no {library} could be loaded; {}; tried {}",
        what_to_do(tried, override_variable),
        tried_names(tried)
    )]
    NoLibrary {
        /// `CUDA driver` or `NVML`.
        library: &'static str,
        /// The variable that names another file.
        override_variable: &'static str,
        /// Every name tried, with the loader's words.
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
        /// The file that was loaded; `None` where the driver's functions were handed over.
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

    /// A driver call failed.
    #[error("{call} failed{}: {name} ({code}){}", on(*device), hint(*code))]
    Driver {
        /// The device it was made for, where it was made for one.
        device: Option<DeviceId>,
        /// The entry point.
        call: &'static str,
        /// The driver's result code.
        code: i32,
        /// The driver's name for it.
        name: String,
    },

    /// The device has no room for a chunk: its driver (for `host`: its budget or the kernel) said so.
    #[error(
        "{device} is out of memory: {requested} asked for, {free} free of {total}; {}",
        who_has_it(*device)
    )]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// What was asked for.
        requested: Bytes,
        /// What it says is free.
        free: Bytes,
        /// What it has.
        total: Bytes,
    },

    /// The machine has too little host memory left: our own cap, checked before the kernel is asked.
    #[error(
        "not enough host memory: {requested} needed, {left} left ({limit}); free some or ask for less"
    )]
    NoHostHeadroom {
        /// The size that was asked for.
        requested: Bytes,
        /// The memory that is left, less a margin for the machine.
        left: Bytes,
        /// The limit that is nearest.
        limit: HostLimit,
    },

    /// A size that no device takes.
    #[error("{operation} of {size:?} on {device}: {rule}")]
    BadSize {
        /// The device.
        device: DeviceId,
        /// What was tried.
        operation: &'static str,
        /// The size given.
        size: Bytes,
        /// What a size must be.
        rule: String,
    },

    /// A range that is not wholly mapped (and opened, where it is to be read or written).
    #[error("{operation} of {size} at offset {offset:?} on {device}: {problem}")]
    BadRange {
        /// The device.
        device: DeviceId,
        /// What was tried.
        operation: &'static str,
        /// Where in the reservation or the host memory.
        offset: Bytes,
        /// How much.
        size: Bytes,
        /// What is wrong with it.
        problem: RangeProblem,
    },

    /// Things of two devices in one call.
    #[error(
        "{operation} on {device}: the {what} belongs to another device; each device has its own"
    )]
    OtherDevice {
        /// The device that was asked.
        device: DeviceId,
        /// What was tried.
        operation: &'static str,
        /// What belongs elsewhere.
        what: &'static str,
    },

    /// The operating system refused.
    #[error("{operation} failed: {source}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },

    /// This machine cannot do it at all.
    #[error("{what} does not work here: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why it cannot be.
        why: String,
    },

    /// NVML answered with an error.
    #[error("NVML could not say {question}: {answer}")]
    Nvml {
        /// What was asked.
        question: &'static str,
        /// What it answered.
        answer: String,
    },
}

/// What is wrong with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeProblem {
    /// It ends past the end.
    OutOfBounds,
    /// Part of it is not mapped.
    NotMapped,
    /// Part of it is mapped already.
    AlreadyMapped,
    /// It is mapped, but not opened for reading and writing.
    NotOpen,
    /// It cuts a mapping in two; a mapping goes as a whole.
    CutsMapping,
    /// Work in flight, or another thread, is using it.
    InUse,
}

impl fmt::Display for RangeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RangeProblem::OutOfBounds => "it ends past the end",
            RangeProblem::NotMapped => "part of it is not mapped",
            RangeProblem::AlreadyMapped => "part of it is mapped already",
            RangeProblem::NotOpen => "it is mapped but was not opened",
            RangeProblem::CutsMapping => "it cuts a mapping in two; a mapping goes as a whole",
            RangeProblem::InUse => {
                "work in flight or another thread uses it; synchronise the stream first"
            }
        })
    }
}

impl Error {
    /// An operating-system error with what was tried.
    pub(crate) fn os(operation: &'static str) -> Error {
        Error::Os { operation, source: io::Error::last_os_error() }
    }

    /// Whether the context is lost, and with it everything that this process has on the device.
    /// Nothing will succeed there any more, so nothing is worth a second try.
    pub fn is_context_lost(&self) -> bool {
        let Error::Driver { code, .. } = self else { return false };
        matches!(code, 4 | 700 | 702 | 709 | 710 | 714..=719)
    }

    /// Whether the device is simply full, so that giving memory back and trying again may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }
}

fn list(known: &[DeviceId]) -> String {
    known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn tried_names(tried: &[Attempt]) -> String {
    if tried.is_empty() {
        return "no name: there is none for this system".to_owned();
    }
    tried.iter().map(|attempt| attempt.name.as_str()).collect::<Vec<_>>().join(", ")
}

// A file that is there but does not load needs another cure than one that is missing.
fn what_to_do(tried: &[Attempt], override_variable: &str) -> String {
    let present = tried.iter().find_map(|attempt| {
        let failure = attempt.failure.as_deref()?;
        (!failure.contains("No such file")).then(|| format!("{}: {failure}", attempt.name))
    });
    match present {
        Some(said) => format!("the loader said {said}"),
        None => format!(
            "install the NVIDIA driver, or set {override_variable} to the library's path if it lies elsewhere"
        ),
    }
}

fn or_another(library: Option<&Path>) -> String {
    library.map_or_else(String::new, |path| {
        format!(", or set LOWTIDE_CUDA_LIBRARY to another library (loaded {})", path.display())
    })
}

fn who_has_it(device: DeviceId) -> &'static str {
    match device {
        DeviceId::Cuda(_) => "`lowtide ps` shows who holds the rest",
        DeviceId::Host => "the rest of its budget is held by this process",
        DeviceId::DryRun => "give the books more",
        DeviceId::Named(_) => "whoever named it knows who holds the rest",
    }
}

fn on(device: Option<DeviceId>) -> String {
    device.map(|device| format!(" on {device}")).unwrap_or_default()
}

fn hint(code: i32) -> &'static str {
    match code {
        2 => "; the device or the machine is out of memory: `lowtide ps` shows who holds it",
        100 => "; no GPU is visible: check CUDA_VISIBLE_DEVICES",
        304 => "; the operating system refused: check permissions on /dev/nvidia*",
        700 | 719 => "; the context is lost: end this process",
        803 => "; driver and kernel module differ in version: reboot or reload the module",
        900 | 901 => "; a CUDA graph is being captured: try again when the capture has ended",
        _ => "",
    }
}
