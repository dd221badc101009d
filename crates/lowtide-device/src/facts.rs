//! The facts that errors carry: which library, which limit, which rule, which problem.

use std::fmt;
use std::path::PathBuf;

use lowtide_types::{Bytes, words};
use serde::Serialize;

/// A name under which a library was looked for, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The name or path given to the loader.
    pub name: String,
    /// The loader's message; `None` if it succeeded.
    pub failure: Option<String>,
}

/// A library of the NVIDIA driver, looked up at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverLibrary {
    /// The CUDA driver, `libcuda` (R29).
    Cuda,
    /// The management library NVML, `libnvidia-ml`.
    Nvml,
}

impl DriverLibrary {
    /// Returns the name that people know it by.
    pub fn name(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => "CUDA driver",
            DriverLibrary::Nvml => "NVML library",
        }
    }

    /// Returns the environment variable that names one file to load and no other.
    pub fn variable(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => "LOWTIDE_CUDA_LIBRARY",
            DriverLibrary::Nvml => "LOWTIDE_NVML_LIBRARY",
        }
    }

    /// Returns what a machine without it cannot do.
    pub(crate) fn without(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => "no GPU can be used",
            DriverLibrary::Nvml => "memory per process cannot be read",
        }
    }

    /// Returns the names that it usually has, in the order to try.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            // There has been no CUDA on macOS since 2019.
            _ if cfg!(target_os = "macos") => &[],
            DriverLibrary::Cuda if cfg!(windows) => &["nvcuda.dll"],
            DriverLibrary::Nvml if cfg!(windows) => &["nvml.dll"],
            DriverLibrary::Cuda => &[
                "libcuda.so.1",
                "libcuda.so",
                "/usr/lib/wsl/lib/libcuda.so.1",
                "/usr/local/nvidia/lib64/libcuda.so.1",
                "/run/opengl-driver/lib/libcuda.so.1",
            ],
            DriverLibrary::Nvml => &[
                "libnvidia-ml.so.1",
                "libnvidia-ml.so",
                "/usr/lib/wsl/lib/libnvidia-ml.so.1",
                "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
                "/run/opengl-driver/lib/libnvidia-ml.so.1",
            ],
        }
    }
}

/// A limit on host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLimit {
    /// The machine's available memory.
    Machine,
    /// The memory limit of a control group, with the group's path from the root.
    ControlGroup(PathBuf),
}

impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostLimit::Machine => f.write_str("the machine's available memory"),
            HostLimit::ControlGroup(path) => {
                write!(f, "the memory limit of control group {}", path.display())
            }
        }
    }
}

/// A rule for sizes and offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// A size is a multiple of the device's page and not zero.
    Pages(Bytes),
    /// An offset is a multiple of the device's page.
    Offset(Bytes),
    /// Digests cover ranges of whole pages of this size.
    DigestPages(Bytes),
    /// Pages are packed and unpacked so many at once at most, at offsets of 4 KiB in host memory and
    /// within one registration of it.
    PackedPages(usize),
    /// A kernel copies multiples of 4 KiB, at multiples of 4 KiB.
    KernelCopies,
    /// Host memory has at least one byte.
    NotEmpty,
    /// A budget is a multiple of the page, up to the memory of the machine.
    Budget {
        /// The page of the device.
        page: Bytes,
        /// The memory of the machine.
        most: Bytes,
    },
    /// No more than there are addresses.
    AddressSpace,
}

impl fmt::Display for SizeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeRule::Pages(page) => {
                write!(f, "a size is a multiple of the page ({page}) and not zero")
            }
            SizeRule::Offset(page) => write!(f, "an offset is a multiple of the page ({page})"),
            SizeRule::DigestPages(page) => {
                write!(f, "digests cover ranges of whole pages of {page}")
            }
            SizeRule::PackedPages(most) => write!(
                f,
                "1 to {most} pages are packed at once, at multiples of 4 KiB in one registration"
            ),
            SizeRule::KernelCopies => {
                f.write_str("a kernel copies multiples of 4 KiB, at multiples of 4 KiB")
            }
            SizeRule::NotEmpty => f.write_str("host memory has at least one byte"),
            SizeRule::Budget { page, most } => {
                write!(f, "a budget is a multiple of {page}, up to the {most} of this machine")
            }
            SizeRule::AddressSpace => f.write_str("there are not that many addresses"),
        }
    }
}

words! {
    /// The reason why a range cannot be used.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RangeProblem {
        /// The range ends past the end.
        OutOfBounds = "the range ends past the end",
        /// Part of the range is not mapped.
        NotMapped = "part of the range is not mapped",
        /// Part of the range is mapped already.
        AlreadyMapped = "part of the range is mapped already",
        /// The range is mapped, but not opened for reading and writing.
        NotOpen = "the range is mapped but was not opened",
        /// The range cuts a mapping in two.
        CutsMapping = "the range cuts a mapping in two",
        /// Work in flight or another thread uses the range.
        InUse = "work in flight or another thread uses the range",
        /// The two ranges of a copy overlap.
        Overlaps = "the ranges overlap",
    }
}

impl RangeProblem {
    /// Returns what to do about it, as the end of a sentence.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            RangeProblem::OutOfBounds
            | RangeProblem::NotMapped
            | RangeProblem::AlreadyMapped
            | RangeProblem::Overlaps => "",
            RangeProblem::NotOpen => "; open it first",
            RangeProblem::CutsMapping => "; a mapping goes as a whole",
            RangeProblem::InUse => "; synchronise the stream first",
        }
    }
}
