//! The device that callers hold: safe, shared, and sure to give everything back.
//!
//! It checks sizes and ranges, keeps what is in flight alive, gives things back in the right order
//! and tries again what the driver refused to take. Underneath is a [`Backend`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lowtide_types::{DeviceId, Usage};
use serde::Serialize;

use crate::{
    Backend, Bytes, Chunk, Error, HostMemory, Reservation, Result, Stream, exit, host_memory,
    staging,
};

/// An address of device memory. On `host` it is an address of this process too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// The address so many bytes further on.
    #[must_use]
    pub const fn plus(self, offset: Bytes) -> Address {
        Address(self.0 + offset.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Which one.
    pub id: DeviceId,
    /// `host` or `cuda`.
    pub kind: &'static str,
    /// What its maker calls it.
    pub name: String,
    /// All the memory it has.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// Chunks are multiples of this.
    #[serde(rename = "page_bytes")]
    pub page: Bytes,
    /// The GPU's own identity, the same in every process and after a restart.
    pub uuid: Option<String>,
}

/// A device that callers can hold, clone and share.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// # fn main() -> lowtide_device::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let reservation = device.reserve(Bytes::mib(32))?;
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// reservation.map(Bytes::ZERO, device.create(Bytes::mib(4))?)?;
/// assert_eq!(device.usage()?.in_use(), Bytes::mib(4));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

// What every RAII type of a device holds on to.
pub(crate) struct Inner {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) staging: staging::Cache,
    leftovers: Mutex<Vec<Leftover>>,
}

struct Leftover {
    what: &'static str,
    give_back: Box<GiveBack>,
}

type GiveBack = dyn FnMut(&dyn Backend) -> Result<()> + Send;

impl Device {
    /// A device over a back end. [`Device::host`] and [`Device::cuda`] are the usual ways in.
    pub fn new(backend: impl Backend + 'static) -> Device {
        exit::watch(&exit::OF_DEVICES);
        let inner = Inner {
            backend: Box::new(backend),
            staging: staging::Cache::default(),
            leftovers: Mutex::default(),
        };
        Device { inner: Arc::new(inner) }
    }

    /// The device of this name: `host`, `cuda:0`, …
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] with the devices there are; [`Error::NoLibrary`] and others where a
    /// `cuda` device was asked for and the driver cannot serve it.
    pub fn open(id: DeviceId) -> Result<Device> {
        match id {
            DeviceId::Host => Device::host(crate::HostOptions::default()),
            DeviceId::Cuda(index) => Device::cuda(index),
            DeviceId::DryRun | DeviceId::Named(_) => {
                Err(Error::UnknownDevice { wanted: id.to_string(), known: crate::known_devices() })
            }
        }
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        self.inner.backend.info()
    }

    /// What it says is in use, by everybody.
    ///
    /// # Errors
    /// If the device cannot be asked.
    pub fn usage(&self) -> Result<Usage> {
        self.inner.backend.usage()
    }

    /// Takes address space: a multiple of the page. Costs no memory.
    ///
    /// # Errors
    /// [`Error::BadSize`], or the driver's refusal.
    pub fn reserve(&self, size: Bytes) -> Result<Reservation> {
        exit::refuse_after_fork()?;
        self.check_size("reserve", size)?;
        self.inner.sweep();
        Reservation::new(&self.inner, size)
    }

    /// Takes memory: a multiple of the page. Its content is undefined.
    ///
    /// # Errors
    /// [`Error::BadSize`], or [`Error::OutOfMemory`] with what is free.
    pub fn create(&self, size: Bytes) -> Result<Chunk> {
        exit::refuse_after_fork()?;
        self.check_size("create", size)?;
        self.inner.sweep();
        Chunk::new(&self.inner, size)
    }

    /// A new stream for copies and digests.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn stream(&self) -> Result<Stream> {
        exit::refuse_after_fork()?;
        self.inner.sweep();
        Stream::new(&self.inner)
    }

    /// Takes host memory that copies run at full speed with: huge pages, prepared by several
    /// threads, registered, left out of forks and core dumps.
    ///
    /// # Errors
    /// [`Error::NoHostHeadroom`] before anything is taken, or the driver's refusal.
    pub fn host_memory(&self, size: Bytes) -> Result<Arc<HostMemory>> {
        self.host_memory_by(size, host_memory::all_threads())
    }

    /// As [`Device::host_memory`], but prepared by the calling thread alone: for callers who
    /// prepare several pieces at once, on threads of their own. Each piece is held against what
    /// the machine has left at that moment, not against the others; who takes several asks
    /// [`crate::headroom::require`] for their sum first.
    ///
    /// # Errors
    /// As [`Device::host_memory`].
    pub fn host_memory_here(&self, size: Bytes) -> Result<Arc<HostMemory>> {
        self.host_memory_by(size, 1)
    }

    fn host_memory_by(&self, size: Bytes, threads: usize) -> Result<Arc<HostMemory>> {
        exit::refuse_after_fork()?;
        self.inner.sweep();
        HostMemory::new(&self.inner, size, threads).map(Arc::new)
    }

    /// Waits for all work on the device: of every stream, and on a GPU of whatever else in this
    /// process uses its primary context, frameworks included. What a stream keeps alive it lets go
    /// of when it is asked itself, as by [`Stream::has_passed`].
    ///
    /// # Errors
    /// What went wrong in that work, or the driver's refusal. While somebody captures a graph in
    /// the context the driver refuses, and that capture is lost: no capture mode allows this wait.
    pub fn synchronize(&self) -> Result<()> {
        exit::refuse_after_fork()?;
        self.inner.backend.synchronize()
    }

    /// How many calls were made at the driver so far through this device and all that was taken
    /// from it. On `host`: how many there would have been.
    pub fn calls(&self) -> u64 {
        self.inner.backend.calls()
    }

    /// How many things the driver refused to take back. They are tried again with every reserve,
    /// create and stream, and when the device goes.
    pub fn leftovers(&self) -> usize {
        self.inner.leftovers().len()
    }

    fn check_size(&self, operation: &'static str, size: Bytes) -> Result<()> {
        let page = self.info().page;
        if size > Bytes::ZERO && size.is_multiple_of(page) {
            return Ok(());
        }
        let rule = format!("sizes are multiples of the page, {page}, and not zero");
        Err(Error::BadSize { device: self.info().id, operation, size, rule })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.info().id)
    }
}

impl Inner {
    pub(crate) fn id(&self) -> DeviceId {
        self.backend.info().id
    }

    fn leftovers(&self) -> std::sync::MutexGuard<'_, Vec<Leftover>> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives something back where nobody can be told of a failure. What the driver refuses is
    /// kept and tried again later, so that one bad call does not leak.
    pub(crate) fn give_back(
        &self,
        what: &'static str,
        mut give_back: impl FnMut(&dyn Backend) -> Result<()> + Send + 'static,
    ) {
        if exit::has_begun() {
            return;
        }
        match give_back(self.backend.as_ref()) {
            Ok(()) => {}
            Err(error) if error.is_context_lost() => {
                tracing::error!(device = %self.id(), what, %error, "lost with its context");
            }
            Err(error) => {
                tracing::warn!(device = %self.id(), what, %error, "not taken back; will try again");
                self.leftovers().push(Leftover { what, give_back: Box::new(give_back) });
            }
        }
    }

    /// Tries once more to give back what was refused.
    pub(crate) fn sweep(&self) {
        let waiting = std::mem::take(&mut *self.leftovers());
        for mut leftover in waiting {
            match (leftover.give_back)(self.backend.as_ref()) {
                Err(error) if !error.is_context_lost() => self.leftovers().push(leftover),
                _ => {}
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if exit::has_begun() {
            return;
        }
        for staging in self.staging.drain() {
            self.give_back("staging memory", move |backend| staging.give_back(backend));
        }
        self.sweep();
        for leftover in self.leftovers().iter() {
            tracing::error!(device = %self.id(), what = leftover.what, "never taken back");
        }
    }
}
