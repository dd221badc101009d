//! Devices whose chunks are as the program has them: virtual memory with the properties that it asked for, and plain
//! memory that the devices may use which it gave peer access.
#![allow(unsafe_code, reason = "is a back end, whose contract is unsafe, over another one")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::{
    Address, Backend, BackendStream, Bytes, Device, DeviceInfo, Error, Handle, Result, Usage,
    passed_on,
};
use lowtide_pool::{Policy, Pool};
use lowtide_types::DeviceId;

use crate::driver::calls;
use crate::driver::codes::OUT_OF_MEMORY;
use crate::driver::layouts::{Access, Properties};

/// A pool of chunks with the same properties.
#[derive(Clone)]
pub(crate) struct VirtualPool {
    pub(crate) pool: Pool,
    handles: Arc<RealHandles>,
}

impl VirtualPool {
    /// Makes a pool of chunks on a device. Each block has one chunk, as large as it is.
    pub(crate) fn new(
        device: &Device,
        properties: Properties,
        policy: Policy,
    ) -> lowtide_pool::Result<VirtualPool> {
        let handles = Arc::<RealHandles>::default();
        let device = Device::new(ProgramChunks {
            device: device.clone(),
            properties: Some(properties),
            handles: Arc::clone(&handles),
            peers: Peers::default(),
        });
        let policy = policy.apart(Some(Bytes(u64::MAX)));
        Ok(VirtualPool { pool: Pool::builder(&device).policy(policy).build()?, handles })
    }

    /// Returns the real handle of the chunk that begins at an address, if the chunk has this size. It is there while
    /// the memory is awake.
    pub(crate) fn handle_at(&self, at: Address, bytes: Bytes) -> Option<u64> {
        let found = self.handles.by_address().get(&at.0).copied();
        found.filter(|(_, size)| *size == bytes).map(|(handle, _)| handle)
    }
}

/// Returns a device whose memory other devices may use, too.
pub(crate) fn open_to(device: &Device, peers: &Peers) -> Device {
    let (device, peers, handles) = (device.clone(), Arc::clone(peers), Arc::default());
    Device::new(ProgramChunks { device, properties: None, handles, peers })
}

/// The devices that may use the plain memory of a context, beside its own.
pub(crate) type Peers = Arc<Mutex<BTreeSet<DeviceId>>>;

/// The real handles of a pool's chunks, by the address at which the pool has mapped each.
#[derive(Default)]
struct RealHandles {
    by_address: Mutex<BTreeMap<u64, (u64, Bytes)>>,
}

impl RealHandles {
    fn by_address(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, Bytes)>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device whose chunks have the program's properties and peers. Everything else is that of the device behind it.
struct ProgramChunks {
    device: Device,
    /// `None` for plain memory.
    properties: Option<Properties>,
    handles: Arc<RealHandles>,
    peers: Peers,
}

impl ProgramChunks {
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

// SAFETY: every operation is one of the back end behind it, with the same arguments; `create` only adds properties,
// and `open` devices.
unsafe impl Backend for ProgramChunks {
    passed_on! {
        fn info(&self) -> &DeviceInfo;
        fn usage(&self) -> Result<Usage>;
        fn calls(&self) -> u64;
        fn reserve(&self, size: Bytes) -> Result<Address>;
        fn stage(&self, size: Bytes) -> Result<*mut u8>;
        fn prepare_digests(&self) -> Result<()>;
        fn packs(&self) -> bool;
        fn prepare_packing(&self) -> Result<()>;
        fn copies_by_kernel(&self) -> bool;
        fn prepare_copies(&self) -> Result<()>;
        fn stream(&self) -> Result<Box<dyn BackendStream>>;
        fn synchronize(&self) -> Result<()>;
    }

    passed_on! {
        unsafe fn release(&self, at: Address, size: Bytes) -> Result<()>;
        unsafe fn destroy(&self, chunk: Handle, size: Bytes) -> Result<()>;
        unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()>;
        unsafe fn unregister(&self, at: *mut u8, size: Bytes) -> Result<()>;
        unsafe fn unstage(&self, at: *mut u8, size: Bytes) -> Result<()>;
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let Some(properties) = &self.properties else { return self.real().create(size) };
        let made = calls::create(self.device.id(), size, properties);
        made.map(Handle).map_err(|error| self.refused(size, error))
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: the caller's promise to this back end is the one to the other.
        unsafe { self.real().open(at, size) }?;
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let access: Vec<Access> = peers.iter().copied().map(Access::all).collect();
        if access.is_empty() { Ok(()) } else { calls::set_access(at.0, size, &access) }
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        // SAFETY: the caller's promise to this back end is the one to the other.
        unsafe { self.real().map(at, chunk, size) }?;
        self.handles.by_address().insert(at.0, (chunk.0, size));
        Ok(())
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.real().unmap(at, size) }?;
        self.handles.by_address().retain(|mapped, _| !(at.0..at.0 + size.0).contains(mapped));
        Ok(())
    }
}
