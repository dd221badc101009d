//! What a device can do: reserve addresses, create memory, map one under the other, copy, digest,
//! and say what is really in use.
//!
//! Two kinds of device: `host`, real pages of this machine with a budget, and `cuda:N`, a GPU
//! behind the CUDA driver, which is looked up at run time. Both are a [`Device`]; callers need not
//! know which. Numbers come from the kernel or the driver, never from our own books.
//!
//! | word | meaning |
//! |---|---|
//! | [`Reservation`] | address space taken from a device; costs no memory |
//! | [`Chunk`] | physical memory, a multiple of the device's page |
//! | [`HostPages`] | plain host memory in huge pages, for backups |
//! | [`HostMemory`] | registered host memory that copies run at full speed with |
//! | [`Stream`] | work in order, later; keeps alive what it touches |
//! | [`digest`] | 128 bits that tell whether a page changed |
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
mod chunk;
mod copying;
pub mod cuda;
mod device;
pub mod digest;
mod dry_run;
mod error;
mod exit;
pub mod headroom;
mod host;
mod host_memory;
mod host_pages;
pub mod identity;
mod library;
pub mod nvml;
pub mod processes;
mod reservation;
mod staging;
mod stream;
pub mod survey;

pub use backend::{Backend, BackendStream, Handle, RawMark};
pub use chunk::Chunk;
pub use device::{Address, Device, DeviceInfo};
pub use dry_run::DryRunCost;
pub use error::{Attempt, Error, RangeProblem, Result};
pub use host::HostOptions;
pub use host_memory::HostMemory;
pub use host_pages::{HostPages, prefer_huge};
pub use lowtide_types::{Bytes, DeviceId, Source, Usage};
pub use reservation::{Mapping, NotMapped, NotUnmapped, Reservation};
pub use stream::{Mark, PendingDigests, Stream};

/// The devices of this machine: `host`, and what the CUDA driver shows, if there is one.
pub fn known_devices() -> Vec<DeviceId> {
    let count = cuda::Driver::load().and_then(|driver| driver.device_count()).unwrap_or(0);
    std::iter::once(DeviceId::Host).chain((0..count).map(DeviceId::Cuda)).collect()
}
