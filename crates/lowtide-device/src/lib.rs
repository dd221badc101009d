//! Devices: reserving addresses, creating memory, mapping one under the other, copying, computing
//! digests, and reading how much memory is in use.
//!
//! There are two kinds of device. `host` is real pages of this machine, with a budget. `cuda:N` is a
//! GPU behind the CUDA driver, which is looked up at run time. Both are a [`Device`], and callers need
//! not know which. Numbers of memory in use come from the kernel or the driver, never from our own
//! tables.
//!
//! | type | meaning |
//! |---|---|
//! | [`Reservation`] | a range of a device's addresses; it uses no memory |
//! | [`Chunk`] | physical memory, a multiple of the device's page |
//! | [`HostMemory`] | registered host memory, for copies at full speed |
//! | [`HostPages`] | plain host memory in huge pages, for backups |
//! | [`Stream`] | work in order, done later; it keeps alive what the work uses |
//! | [`digest`] | 128 bits per page that tell whether the page changed |
//! | [`packing`] | pages of bf16 values in three quarters of their bytes |
//! | [`private_files`] | files that no other user can plant, exchange or read |
//! | [`records`] | bytes that several processes of a user count together |
//! | [`process`] | how something notices that it is in a forked child |
//! | [`process_tree`] | a process and all that it started, ended and proved to be gone |
//! | [`processes`] | the memory of a device by process |
//! | [`neighbours`] | other processes on the same GPUs, and their age |
//! | [`survey`] | what this machine can do |
//! | [`cuda`] | the driver: loaded, or built from entry points that a caller has |
//!
//! ```
//! use lowtide_device::{Bytes, Device, HostOptions};
//! # fn main() -> lowtide_device::Result<()> {
//! let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
//! let reservation = device.reserve(Bytes::mib(8))?;
//! reservation.map(Bytes::ZERO, device.create(Bytes::mib(2))?)?;
//! reservation.open(Bytes::ZERO, Bytes::mib(2))?;
//!
//! let backup = device.host_memory(Bytes::mib(2))?;
//! let stream = device.stream()?;
//! stream.fill((&reservation, Bytes::ZERO), 7, Bytes::mib(2))?;
//! stream.copy_out((&reservation, Bytes::ZERO), (&backup, Bytes::ZERO), Bytes::mib(2))?;
//! stream.synchronize()?;
//!
//! let mut byte = [0];
//! backup.read(Bytes::mib(1), &mut byte)?;
//! assert_eq!(byte, [7]);
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!(
    "lowtide-device builds on Linux only so far: `host` needs memfd and `HostMemory` needs madvise"
);

mod backend;
pub mod cuda;
mod dry_run;
mod error;
mod facts;
mod host;
pub mod neighbours;
pub mod nvml;
mod os;
mod page;
pub mod processes;
mod safe;
pub mod survey;
mod sync;

pub use backend::{Address, Backend, BackendStream, DeviceInfo, DeviceKind, Handle, RawMark};
pub use dry_run::DryRunCost;
pub use error::{Error, Result};
pub use facts::{Attempt, DriverLibrary, HostLimit, RangeProblem, SizeRule};
pub use host::HostOptions;
pub use lowtide_types::{Bytes, DeviceId, Source, Usage};
pub use os::memory::prefer_huge;
pub use os::process_tree::end_with_parent;
pub use os::{headroom, identity, private_files, process, process_tree, records, tallies, yama};
pub use page::{digest, packing};
pub use safe::chunk::Chunk;
pub use safe::device::{Device, known_devices};
pub use safe::host_memory::HostMemory;
pub use safe::host_pages::HostPages;
pub use safe::mapping_table::Mapping;
pub use safe::reservation::{NotMapped, NotUnmapped, Reservation};
pub use safe::stream::{Mark, PackedPages, PendingDigests, PendingLooks, Stream};
