//! Chunks with the properties that the program asked for, and their real handles.
#![allow(unsafe_code, reason = "is a back end, whose contract is unsafe, over another one")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::{
    Address, Backend, BackendStream, Bytes, Device, DeviceInfo, Error, Handle, Result, Usage,
};

use crate::driver::calls as driver;
use crate::driver::properties::Properties;
use crate::sleep::agent::OUT_OF_MEMORY;

/// The real handles of a pool's chunks, by the address at which the pool has mapped each.
#[derive(Default)]
pub(crate) struct RealHandles {
    by_address: Mutex<BTreeMap<u64, (u64, Bytes)>>,
}

impl RealHandles {
    /// Returns the handle of the chunk that begins at an address, if the chunk has this size.
    pub(super) fn at(&self, at: Address, bytes: Bytes) -> Option<u64> {
        let found = self.by_address().get(&at.0).copied();
        found.filter(|(_, size)| *size == bytes).map(|(handle, _)| handle)
    }

    fn by_address(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, Bytes)>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device whose chunks have the program's properties. Everything else is that of the device behind it.
pub(super) struct ProgramsChunks {
    pub(super) device: Device,
    pub(super) properties: Properties,
    pub(super) handles: Arc<RealHandles>,
}

impl ProgramsChunks {
    fn real(&self) -> &dyn Backend {
        self.device.backend()
    }

    fn refused(&self, requested: Bytes, error: Error) -> Error {
        let device = self.device.id();
        match (error, self.real().usage()) {
            (Error::Driver { code: OUT_OF_MEMORY, .. }, Ok(Usage { free, total, .. })) => {
                Error::OutOfMemory { device, requested, free, total }
            }
            (error, _) => error,
        }
    }
}

// SAFETY: every call but `create` is one of the back end behind it, with the same arguments. The callers'
// promises are passed on with them.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
unsafe impl Backend for ProgramsChunks {
    fn info(&self) -> &DeviceInfo {
        self.real().info()
    }

    fn usage(&self) -> Result<Usage> {
        self.real().usage()
    }

    fn calls(&self) -> u64 {
        self.real().calls()
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        self.real().reserve(size)
    }

    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()> {
        unsafe { self.real().release(at, size) }
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let made = driver::create(self.device.id(), size, &self.properties);
        made.map(Handle).map_err(|error| self.refused(size, error))
    }

    unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()> {
        unsafe { self.real().destroy(chunk, size) }
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        unsafe { self.real().map(at, chunk, size) }?;
        self.handles.by_address().insert(at.0, (chunk.0, size));
        Ok(())
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        unsafe { self.real().open(at, size) }
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        unsafe { self.real().unmap(at, size) }?;
        self.handles.by_address().retain(|mapped, _| !(at.0..at.0 + size.0).contains(mapped));
        Ok(())
    }

    unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()> {
        unsafe { self.real().register(at, size) }
    }

    unsafe fn unregister(&self, at: *mut u8, size: Bytes) -> Result<()> {
        unsafe { self.real().unregister(at, size) }
    }

    fn stage(&self, size: Bytes) -> Result<*mut u8> {
        self.real().stage(size)
    }

    unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()> {
        unsafe { self.real().unstage(at, size) }
    }

    fn prepare_digests(&self) -> Result<()> {
        self.real().prepare_digests()
    }

    fn packs(&self) -> bool {
        self.real().packs()
    }

    fn prepare_packing(&self) -> Result<()> {
        self.real().prepare_packing()
    }

    fn copies_by_kernel(&self) -> bool {
        self.real().copies_by_kernel()
    }

    fn prepare_copies(&self) -> Result<()> {
        self.real().prepare_copies()
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        self.real().stream()
    }

    fn synchronize(&self) -> Result<()> {
        self.real().synchronize()
    }
}
