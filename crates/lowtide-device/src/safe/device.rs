//! The device that callers hold: safe, shared, and sure to give everything back.
//!
//! A device checks sizes and ranges, keeps what is in flight alive, gives things back in the right
//! order and tries again what the driver refused to take back. Underneath is a [`Backend`].

use std::sync::Arc;

use lowtide_types::{Bytes, DeviceId, Usage, debug_as};

use crate::cuda::{Context, CudaBackend, Driver};
use crate::dry_run::{DryRunBackend, DryRunCost};
use crate::facts::SizeRule;
use crate::host::{HostBackend, HostOptions};
use crate::os::headroom::HostGrant;
use crate::safe::host_memory;
use crate::safe::shared::Shared;
use crate::{Backend, Chunk, DeviceInfo, Error, HostMemory, Reservation, Result, Stream};

/// A device. Cheap to clone, and shared between threads.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let reservation = device.reserve(Bytes::mib(32))?;
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// reservation.map(Bytes::ZERO, device.create(Bytes::mib(4))?)?;
/// assert_eq!(device.usage()?.in_use(), Bytes::mib(4));
/// assert_eq!(device.id().to_string(), "host");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

/// The ways to open a device.
impl Device {
    /// Opens the device of this name with default options: `host`, `cuda:0`, …
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] with the devices of this machine; the errors of [`Device::cuda`].
    pub fn open(id: DeviceId) -> Result<Device> {
        match id {
            DeviceId::Host => Device::host(HostOptions::default()),
            DeviceId::Cuda(ordinal) => Device::cuda(ordinal),
            DeviceId::DryRun | DeviceId::Named(_) => {
                Err(Error::UnknownDevice { wanted: id, known: known_devices() })
            }
        }
    }

    /// Creates a `host` device: real pages of this machine, with a budget. Each call creates a device
    /// of its own.
    ///
    /// # Errors
    /// [`Error::BadSize`] for a budget that is not a multiple of the page or more than the machine
    /// has; [`Error::Os`] if the kernel refuses.
    pub fn host(options: HostOptions) -> Result<Device> {
        HostBackend::new(options).map(Device::new)
    }

    /// Opens the CUDA device of this ordinal, in its primary context. Loads the driver.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] and others if there is no usable driver, [`Error::UnknownDevice`] if the
    /// driver shows no such device, [`Error::NoVirtualMemory`] if the GPU cannot map memory.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        Device::cuda_with(Arc::new(Driver::load()?), Context::Primary(ordinal))
    }

    /// Opens a CUDA device with a given driver, in a given context. With [`Context::Borrowed`] no
    /// context is created, and no function of the driver is called but those that `driver` has.
    ///
    /// ```no_run
    /// use std::ffi::{CStr, c_void};
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    ///
    /// use lowtide_device::Device;
    /// use lowtide_device::cuda::{BorrowedContext, Context, Driver};
    ///
    /// # fn real_function(_name: &CStr) -> Option<NonNull<c_void>> { None }
    /// # fn main() -> lowtide_device::Result<()> {
    /// # let programs_context = NonNull::<c_void>::dangling();
    /// // An interposer knows where the real functions are and which contexts the program made.
    /// // SAFETY: `real_function` returns the driver's own functions.
    /// let driver = Arc::new(unsafe { Driver::from_entry_points(real_function) }?);
    /// // SAFETY: the program keeps its context until the process ends.
    /// let context = unsafe { BorrowedContext::new(programs_context) };
    /// let device = Device::cuda_with(driver, Context::Borrowed(context))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Device::cuda`]; [`Error::MissingEntryPoint`] if the primary context is wanted and `driver`
    /// lacks the functions for it.
    pub fn cuda_with(driver: Arc<Driver>, context: Context) -> Result<Device> {
        CudaBackend::open(driver, context).map(Device::new)
    }

    /// Creates a device of this size that has no memory and only counts, with the cost of what is
    /// asked of it.
    ///
    /// ```
    /// use lowtide_device::{Bytes, Device};
    /// # fn main() -> lowtide_device::Result<()> {
    /// let (device, cost) = Device::dry_run(Bytes::gib(140));
    /// let _chunk = device.create(Bytes::gib(100))?;
    /// assert_eq!(cost.calls(), 1);
    /// assert!(cost.ms() > 0.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dry_run(total: Bytes) -> (Device, Arc<DryRunCost>) {
        let cost = Arc::new(DryRunCost::default());
        (Device::new(DryRunBackend::new(total, Arc::clone(&cost))), cost)
    }

    /// Creates a device over a back end of the caller's own.
    pub fn new(backend: impl Backend + 'static) -> Device {
        Device { shared: Shared::new(backend) }
    }

    /// Returns the back end, for one that stands before it and passes calls on: one that counts, logs or
    /// refuses them, say.
    pub fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }
}

/// The operations of an open device.
impl Device {
    /// Returns the device's description.
    pub fn info(&self) -> &DeviceInfo {
        self.shared.backend.info()
    }

    /// Returns the device's name: `host`, `cuda:0`, …
    pub fn id(&self) -> DeviceId {
        self.info().id
    }

    /// Returns whether both are handles on one opened device.
    pub fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Asks the device how much memory is in use, by all processes.
    ///
    /// # Errors
    /// The error of the driver or the kernel.
    pub fn usage(&self) -> Result<Usage> {
        self.shared.check_process()?;
        self.shared.backend.usage()
    }

    /// Reserves address space: a multiple of the page. Uses no memory.
    ///
    /// # Errors
    /// [`Error::BadSize`], or the driver's error.
    pub fn reserve(&self, size: Bytes) -> Result<Reservation> {
        self.shared.check_process()?;
        self.check_size("reserve", size)?;
        self.shared.sweep();
        Reservation::new(&self.shared, size)
    }

    /// Creates a chunk of memory: a multiple of the page. Its content is undefined.
    ///
    /// # Errors
    /// [`Error::BadSize`], or [`Error::OutOfMemory`] with what is free.
    pub fn create(&self, size: Bytes) -> Result<Chunk> {
        self.shared.check_process()?;
        self.check_size("create", size)?;
        self.shared.sweep();
        Chunk::new(&self.shared, size)
    }

    /// Creates a stream for copies and digests.
    ///
    /// # Errors
    /// The driver's error.
    pub fn stream(&self) -> Result<Stream> {
        self.shared.check_process()?;
        self.shared.sweep();
        Stream::new(&self.shared)
    }

    /// Loads what digests need, which the first digest does otherwise. On CUDA that is a kernel: the driver
    /// compiles it and keeps it in device memory.
    ///
    /// # Errors
    /// The driver's error.
    pub fn prepare_digests(&self) -> Result<()> {
        self.shared.check_process()?;
        self.shared.backend.prepare_digests()
    }

    /// Returns whether streams of this device pack pages ([`crate::packing`]). A GPU does where it can
    /// use registered host memory under the addresses of the host.
    pub fn packs(&self) -> bool {
        self.shared.backend.packs()
    }

    /// Loads what packing needs, which the first look does otherwise.
    ///
    /// # Errors
    /// The driver's error.
    pub fn prepare_packing(&self) -> Result<()> {
        self.shared.check_process()?;
        self.shared.backend.prepare_packing()
    }

    /// Returns whether streams of this device copy in by a kernel ([`Stream::copy_in_by_kernel`]). A GPU does
    /// where it can use registered host memory under the addresses of the host.
    pub fn copies_by_kernel(&self) -> bool {
        self.shared.backend.copies_by_kernel()
    }

    /// Loads what [`Stream::copy_in_by_kernel`] needs, which the first such copy does otherwise.
    ///
    /// # Errors
    /// The driver's error.
    pub fn prepare_copies(&self) -> Result<()> {
        self.shared.check_process()?;
        self.shared.backend.prepare_copies()
    }

    /// Allocates host memory for copies at full speed: huge pages, prepared by several threads,
    /// registered with the device, left out of forks and core dumps.
    ///
    /// # Errors
    /// [`Error::NoHostHeadroom`] before anything is allocated, or the driver's error.
    pub fn host_memory(&self, size: Bytes) -> Result<Arc<HostMemory>> {
        self.host_memory_by(size, host_memory::all_threads(), None)
    }

    /// Allocates host memory as [`Device::host_memory`] does, out of a grant. After an error the grant
    /// is as it was.
    ///
    /// # Errors
    /// The driver's error; [`Error::NoHostHeadroom`] if the grant is too small and the rest is not there.
    pub fn host_memory_from(&self, grant: &mut HostGrant, size: Bytes) -> Result<Arc<HostMemory>> {
        self.host_memory_by(size, host_memory::all_threads(), Some(grant))
    }

    /// Allocates host memory as [`Device::host_memory`] does, but prepares it on the calling thread
    /// alone. For callers that prepare several pieces at once, on threads of their own.
    ///
    /// # Errors
    /// As [`Device::host_memory`].
    pub fn host_memory_here(&self, size: Bytes) -> Result<Arc<HostMemory>> {
        self.host_memory_by(size, 1, None)
    }

    fn host_memory_by(
        &self,
        size: Bytes,
        threads: usize,
        grant: Option<&mut HostGrant>,
    ) -> Result<Arc<HostMemory>> {
        self.shared.check_process()?;
        self.shared.sweep();
        HostMemory::new(&self.shared, size, threads, grant).map(Arc::new)
    }

    /// Waits for all work on the device: of every stream, and on a GPU of everything else in this
    /// process that uses the same context, frameworks included. Nothing else in this crate waits for
    /// a whole context.
    ///
    /// A stream keeps what its work uses alive until the stream itself is asked, for example by
    /// [`Stream::has_passed`].
    ///
    /// # Errors
    /// The error of that work, or the driver's error. The driver refuses this wait while a graph is
    /// being captured in the context, whatever the capture mode, and the capture is lost: call it only
    /// where nothing captures.
    pub fn synchronize(&self) -> Result<()> {
        self.shared.check_process()?;
        self.shared.backend.synchronize()
    }

    /// Returns how many driver calls were made through this device and everything taken from it. On
    /// `host`: how many there would have been.
    pub fn calls(&self) -> u64 {
        self.shared.backend.calls()
    }

    /// Returns how many things the driver refused to take back. They are tried again with every
    /// reserve, create and stream, and when the device is dropped.
    pub fn leftovers(&self) -> usize {
        self.shared.leftover_count()
    }

    fn check_size(&self, operation: &'static str, size: Bytes) -> Result<()> {
        let DeviceInfo { id, page, .. } = *self.info();
        if size > Bytes::ZERO && size.is_multiple_of(page) {
            return Ok(());
        }
        Err(Error::BadSize { device: id, operation, size, rule: SizeRule::Pages(page) })
    }
}

debug_as!(Device, |it| "Device({})", it.id());

/// Lists the devices of this machine: `host`, and those that the CUDA driver shows, if there is one.
pub fn known_devices() -> Vec<DeviceId> {
    let count = Driver::load().and_then(|driver| driver.device_count()).unwrap_or(0);
    std::iter::once(DeviceId::Host).chain((0..count).map(DeviceId::Cuda)).collect()
}
