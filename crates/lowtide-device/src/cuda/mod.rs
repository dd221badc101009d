//! `cuda:N`: a GPU behind the CUDA driver.
//!
//! | file | holds |
//! |---|---|
//! | `version` | versions of the driver API |
//! | `entry_points` | the one list of the driver's functions |
//! | `driver` | the driver, loaded or built from entry points that were handed over |
//! | `checkpoint` | another process taken off the device and put back |
//! | `card` | a GPU's description of itself |
//! | `context` | the context to work in, and how a call is made in it |
//! | `kernels` | lowtide's own kernels, loaded when they are first needed |
//! | `stream` | streams, events and launches |
#![allow(unsafe_code, reason = "calls the driver")]

mod card;
mod checkpoint;
mod context;
mod driver;
mod entry_points;
mod kernels;
mod stream;
pub(crate) mod version;

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUmemAccess_flags, CUmemAccessDesc};

use crate::backend::{Address, Backend, BackendStream, DeviceInfo, DeviceKind, Handle};
use crate::nvml::Nvml;
use crate::{Bytes, Error, Result, Source, Usage};

pub(crate) use card::Card;
pub use card::uuid_text;
pub use checkpoint::CheckpointState;
pub use context::{BorrowedContext, Context};
use context::{Session, call};
pub use driver::Driver;
pub use entry_points::{
    CheckpointCalls, CoreCalls, ENTRY_POINTS, EntryGroup, EntryPoint, KernelCalls,
    PrimaryContextCalls,
};
use kernels::Kernel;
pub use version::CudaVersion;

const PORTABLE: u32 = cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE;

/// A GPU as a device.
pub(crate) struct CudaBackend {
    session: Arc<Session>,
    info: DeviceInfo,
    nvml: Option<Nvml>,
}

impl CudaBackend {
    pub(crate) fn open(driver: Arc<Driver>, context: Context) -> Result<CudaBackend> {
        let session = Session::open(driver, context)?;
        let nvml = Nvml::load().inspect_err(|error| tracing::info!(%error, "no NVML")).ok();
        // NVML's total includes what the driver reserves; all sums refer to it.
        let card = &session.card;
        let usage = nvml.as_ref().and_then(|nvml| nvml.usage(&card.uuid).ok());
        let info = DeviceInfo {
            id: session.id,
            kind: DeviceKind::Cuda,
            name: card.name.clone(),
            total: usage.map_or(card.total, |usage| usage.total),
            page: card.page,
            uuid: Some(card.uuid.clone()),
        };
        tracing::debug!(device = %info.id, name = info.name, total = %info.total, "opened");
        Ok(CudaBackend { session: Arc::new(session), info, nvml })
    }

    // The driver says only "out of memory"; people want to know of how much.
    fn with_free(&self, requested: Bytes, error: Error) -> Error {
        let Error::Driver { call: "cuMemCreate", code: driver::OUT_OF_MEMORY, .. } = error else {
            return error;
        };
        let Ok(usage) = self.usage() else { return error };
        let (free, total) = (usage.free, usage.total);
        Error::OutOfMemory { device: self.session.id, requested, free, total }
    }
}

// SAFETY: addresses and handles come from the driver; pinned memory is aligned to pages.
unsafe impl Backend for CudaBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn usage(&self) -> Result<Usage> {
        if let Some(nvml) = &self.nvml
            && let Ok(usage) = nvml.usage(&self.session.card.uuid)
        {
            return Ok(usage);
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes.
        unsafe { call!(self.session, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        let (free, total) = (Bytes(free as u64), Bytes(total as u64));
        Ok(Usage { total, free, reserved: Bytes::ZERO, source: Source::Driver })
    }

    fn calls(&self) -> u64 {
        self.session.calls()
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        let mut at = 0;
        // SAFETY: writes one address; takes nothing of ours.
        unsafe { call!(self.session, cuMemAddressReserve(&raw mut at, size.as_usize(), 0, 0, 0)) }?;
        Ok(Address(at))
    }

    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: a whole reservation with nothing mapped in it, by the contract of `Backend`.
        unsafe { call!(self.session, cuMemAddressFree(at.0, size.as_usize())) }
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let (mut handle, bytes) = (0, size.as_usize());
        let card = &self.session.card;
        let properties = card::chunk_properties(card.device, card.shares);
        let of = &raw const properties;
        // SAFETY: writes one handle, reads one struct; both are locals.
        let created = unsafe { call!(self.session, cuMemCreate(&raw mut handle, bytes, of, 0)) };
        created.map_err(|error| self.with_free(size, error))?;
        Ok(Handle(handle))
    }

    unsafe fn destroy(&self, chunk: Handle, _size: Bytes) -> Result<()> {
        // SAFETY: a live handle, by the contract of `Backend`.
        unsafe { call!(self.session, cuMemRelease(chunk.0)) }
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        // SAFETY: a live handle of this size over reserved, unmapped addresses, by the contract.
        unsafe { call!(self.session, cuMemMap(at.0, size.as_usize(), 0, chunk.0, 0)) }
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: card::location(self.session.card.device), flags };
        // SAFETY: whole mappings, by the contract; reads one struct.
        unsafe { call!(self.session, cuMemSetAccess(at.0, size.as_usize(), &raw const access, 1)) }
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: whole mappings that no work in flight uses, by the contract of `Backend`.
        unsafe { call!(self.session, cuMemUnmap(at.0, size.as_usize())) }
    }

    unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()> {
        // SAFETY: pages of ours that stay until they are unregistered, by the contract.
        unsafe { call!(self.session, cuMemHostRegister_v2(at.cast(), size.as_usize(), PORTABLE)) }
    }

    unsafe fn unregister(&self, at: *mut u8, _size: Bytes) -> Result<()> {
        // SAFETY: registered at this address, with no copy in flight, by the contract.
        unsafe { call!(self.session, cuMemHostUnregister(at.cast())) }
    }

    fn stage(&self, size: Bytes) -> Result<*mut u8> {
        let mut at: *mut c_void = ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(self.session, cuMemHostAlloc(&raw mut at, size.as_usize(), PORTABLE)) }?;
        Ok(at.cast())
    }

    unsafe fn unstage(&self, at: *mut u8, _size: Bytes) -> Result<()> {
        // SAFETY: allocated by `stage` and used by no work in flight, by the contract.
        unsafe { call!(self.session, cuMemFreeHost(at.cast())) }
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        Ok(Box::new(stream::CudaStream::new(&self.session)?))
    }

    fn prepare_digests(&self) -> Result<()> {
        self.session.function(Kernel::Digest).map(drop)
    }

    fn packs(&self) -> bool {
        self.session.card.same_addresses
    }

    fn prepare_packing(&self) -> Result<()> {
        self.session.function(Kernel::Pack).map(drop)
    }

    fn prepare_copies(&self) -> Result<()> {
        self.session.function(Kernel::CopyIn).map(drop)
    }

    // The context is the frameworks' too, so their streams are waited for with ours.
    fn synchronize(&self) -> Result<()> {
        // SAFETY: takes nothing; waits for the context that is current, which is ours.
        unsafe { call!(self.session, cuCtxSynchronize()) }
    }
}
