//! `cuda:N`: a GPU behind the CUDA driver.
//!
//! Works in the device's primary context, which the frameworks in the process share. Every call
//! makes that context current and puts the caller's back, and puts this thread's capture mode to
//! relaxed and back, so that our housekeeping never invalidates a graph somebody is capturing.
#![allow(unsafe_code, reason = "calls the driver")]

mod driver;
mod stream;

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUfunction, CUmemAccess_flags, CUmemAccessDesc, CUmodule};

use crate::backend::{Backend, BackendStream, Handle};
use crate::{Address, Bytes, Device, DeviceId, DeviceInfo, Error, Result, Usage, exit, nvml::Nvml};
use lowtide_types::Source;

pub(crate) use driver::Card;
pub use driver::{Driver, EntryPoints};

/// Compiled from `kernels/digest.cu`; `cargo xtask ptx` makes it anew.
const DIGEST_PTX: &str = concat!(include_str!("../../kernels/digest.ptx"), "\0");
const PORTABLE: u32 = cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE;
const RELAXED: u32 = 2;

impl Device {
    /// The CUDA device of this number.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] and the like where there is no usable driver, [`Error::UnknownDevice`]
    /// where the driver shows no such device, [`Error::Unsupported`] where it has no virtual memory.
    pub fn cuda(index: u32) -> Result<Device> {
        let driver = Driver::load()?;
        if index >= driver.device_count()? {
            let known = crate::known_devices();
            return Err(Error::UnknownDevice { wanted: DeviceId::Cuda(index).to_string(), known });
        }
        let card = driver.card(index)?;
        if !card.virtual_memory {
            let why = format!("{} has no virtual memory management", card.name);
            return Err(Error::Unsupported { what: "a CUDA device", why });
        }
        CudaBackend::new(driver, index, card).map(Device::new)
    }
}

struct CudaBackend {
    core: Arc<Core>,
    info: DeviceInfo,
    nvml: Option<Nvml>,
}

/// What back end and streams share: the driver and the context that is retained.
struct Core {
    driver: Driver,
    id: DeviceId,
    card: Card,
    context: CUcontext,
    kernel: Mutex<Option<Kernel>>,
    /// Calls made with our context current; what makes it current is not counted.
    calls: AtomicU64,
}

#[derive(Clone, Copy)]
struct Kernel {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: contexts, modules and functions are names that the driver accepts from any thread.
unsafe impl Send for Core {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Core {}

impl CudaBackend {
    fn new(driver: Driver, index: u32, card: Card) -> Result<CudaBackend> {
        let id = DeviceId::Cuda(index);
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer. `Core` owns the retained context from here on.
        let code =
            unsafe { (driver.api().cuDevicePrimaryCtxRetain)(&raw mut context, card.device) };
        driver.check("cuDevicePrimaryCtxRetain", id, code)?;
        let (kernel, calls) = (Mutex::default(), AtomicU64::new(0));
        let core = Core { driver, id, card, context, kernel, calls };
        let nvml = Nvml::load().inspect_err(|error| tracing::info!(%error, "no NVML")).ok();
        // NVML's total includes what the driver reserves; all sums refer to it.
        let usage = nvml.as_ref().and_then(|nvml| nvml.usage(&core.card.uuid).ok());
        let info = DeviceInfo {
            id,
            kind: "cuda",
            name: core.card.name.clone(),
            total: usage.map_or(core.card.total, |usage| usage.total),
            page: core.card.page,
            uuid: Some(core.card.uuid.clone()),
        };
        tracing::debug!(device = %id, name = info.name, total = %info.total, "opened");
        Ok(CudaBackend { core: Arc::new(core), info, nvml })
    }

    // The driver says only "out of memory"; people want to know of how much.
    fn with_room(&self, requested: Bytes, error: Error) -> Error {
        let Error::Driver { call: "cuMemCreate", code: driver::OUT_OF_MEMORY, .. } = error else {
            return error;
        };
        let Ok(usage) = self.usage() else { return error };
        Error::OutOfMemory { device: self.core.id, requested, free: usage.free, total: usage.total }
    }
}

impl Core {
    /// Makes one driver call with our context current, and restores what the caller had.
    fn call(&self, name: &'static str, call: impl FnOnce(&EntryPoints) -> i32) -> Result<()> {
        let _current = Current::enter(self)?;
        self.calls.fetch_add(1, Relaxed);
        self.driver.check(name, self.id, call(self.driver.api()))
    }

    /// The digest kernel, loaded when it is first needed: a module takes device memory.
    fn kernel(&self) -> Result<Kernel> {
        let mut slot = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = *slot {
            return Ok(kernel);
        }
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        self.call("cuModuleLoadData", |api| {
            // SAFETY: writes one pointer; the image is PTX text ended by a zero.
            unsafe { (api.cuModuleLoadData)(&raw mut module, DIGEST_PTX.as_ptr().cast()) }
        })?;
        let found = self.call("cuModuleGetFunction", |api| {
            // SAFETY: writes one pointer; the module was just loaded.
            unsafe {
                (api.cuModuleGetFunction)(&raw mut function, module, c"lowtide_digest".as_ptr())
            }
        });
        if let Err(error) = found {
            self.unload(module);
            return Err(error);
        }
        Ok(*slot.insert(Kernel { module, function }))
    }

    fn unload(&self, module: CUmodule) {
        twice("cuModuleUnload", || {
            // SAFETY: loaded by `kernel`, and nothing is running: streams hold the core.
            self.call("cuModuleUnload", |api| unsafe { (api.cuModuleUnload)(module) })
        });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if exit::has_begun() {
            return;
        }
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(kernel) = kernel {
            self.unload(kernel.module);
        }
        twice("cuDevicePrimaryCtxRelease", || {
            // SAFETY: retained once, by `CudaBackend::new`.
            let code =
                unsafe { (self.driver.api().cuDevicePrimaryCtxRelease_v2)(self.card.device) };
            self.driver.check("cuDevicePrimaryCtxRelease_v2", self.id, code)
        });
    }
}

/// Gives something back where a failure can only be logged: once more, then that is that.
fn twice(what: &'static str, mut give_back: impl FnMut() -> Result<()>) {
    if let Err(error) = give_back().or_else(|_| give_back()) {
        tracing::error!(what, %error, "never taken back");
    }
}

/// Our context is current and this thread's capture mode relaxed, while this lives.
struct Current<'a> {
    core: &'a Core,
    mode: u32,
}

impl<'a> Current<'a> {
    fn enter(core: &'a Core) -> Result<Current<'a>> {
        let api = core.driver.api();
        // SAFETY: the context is retained by `core`.
        let code = unsafe { (api.cuCtxPushCurrent_v2)(core.context) };
        core.driver.check("cuCtxPushCurrent_v2", core.id, code)?;
        let mut mode = RELAXED;
        // SAFETY: reads and writes one int.
        let code = unsafe { (api.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        if let Err(error) = core.driver.check("cuThreadExchangeStreamCaptureMode", core.id, code) {
            core.pop();
            return Err(error);
        }
        Ok(Current { core, mode })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let core = self.core;
        twice("cuThreadExchangeStreamCaptureMode", || {
            // SAFETY: reads and writes one int.
            let code = unsafe {
                (core.driver.api().cuThreadExchangeStreamCaptureMode)(&raw mut self.mode)
            };
            core.driver.check("cuThreadExchangeStreamCaptureMode", core.id, code)
        });
        core.pop();
    }
}

impl Core {
    fn pop(&self) {
        twice("cuCtxPopCurrent", || {
            let mut popped = ptr::null_mut();
            // SAFETY: writes one pointer; pops what `Current::enter` pushed.
            let code = unsafe { (self.driver.api().cuCtxPopCurrent_v2)(&raw mut popped) };
            self.driver.check("cuCtxPopCurrent_v2", self.id, code)
        });
    }
}

// SAFETY: addresses and handles come from the driver; pinned memory is aligned to pages.
unsafe impl Backend for CudaBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn usage(&self) -> Result<Usage> {
        if let Some(nvml) = &self.nvml
            && let Ok(usage) = nvml.usage(&self.core.card.uuid)
        {
            return Ok(usage);
        }
        let (mut free, mut total) = (0, 0);
        self.core.call("cuMemGetInfo_v2", |api| {
            // SAFETY: writes two sizes.
            unsafe { (api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) }
        })?;
        let (free, total) = (Bytes(free as u64), Bytes(total as u64));
        Ok(Usage { total, free, reserved: Bytes::ZERO, source: Source::Driver })
    }

    fn calls(&self) -> u64 {
        self.core.calls.load(Relaxed)
    }

    fn reserve(&self, size: Bytes) -> Result<Address> {
        let mut at = 0;
        self.core.call("cuMemAddressReserve", |api| {
            // SAFETY: writes one address; takes nothing of ours.
            unsafe { (api.cuMemAddressReserve)(&raw mut at, size.as_usize(), 0, 0, 0) }
        })?;
        Ok(Address(at))
    }

    unsafe fn release(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: a whole reservation with nothing mapped in it, by the contract of `Backend`.
        self.core.call("cuMemAddressFree", |api| unsafe {
            (api.cuMemAddressFree)(at.0, size.as_usize())
        })
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let mut handle = 0;
        let properties = driver::chunk_properties(self.core.card.device);
        let created = self.core.call("cuMemCreate", |api| {
            // SAFETY: writes one handle, reads one struct; both are locals.
            unsafe { (api.cuMemCreate)(&raw mut handle, size.as_usize(), &raw const properties, 0) }
        });
        created.map_err(|error| self.with_room(size, error))?;
        Ok(Handle(handle))
    }

    unsafe fn destroy(&self, chunk: Handle, _size: Bytes) -> Result<()> {
        // SAFETY: a live handle, by the contract of `Backend`.
        self.core.call("cuMemRelease", |api| unsafe { (api.cuMemRelease)(chunk.0) })
    }

    unsafe fn map(&self, at: Address, chunk: Handle, size: Bytes) -> Result<()> {
        self.core.call("cuMemMap", |api| {
            // SAFETY: a live handle of this size over reserved, unmapped addresses, by the contract.
            unsafe { (api.cuMemMap)(at.0, size.as_usize(), 0, chunk.0, 0) }
        })
    }

    unsafe fn open(&self, at: Address, size: Bytes) -> Result<()> {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: driver::location(self.core.card.device), flags };
        self.core.call("cuMemSetAccess", |api| {
            // SAFETY: whole mappings, by the contract; reads one struct.
            unsafe { (api.cuMemSetAccess)(at.0, size.as_usize(), &raw const access, 1) }
        })
    }

    unsafe fn unmap(&self, at: Address, size: Bytes) -> Result<()> {
        // SAFETY: whole mappings that no work in flight uses, by the contract of `Backend`.
        self.core.call("cuMemUnmap", |api| unsafe { (api.cuMemUnmap)(at.0, size.as_usize()) })
    }

    unsafe fn register(&self, at: *mut u8, size: Bytes) -> Result<()> {
        self.core.call("cuMemHostRegister_v2", |api| {
            // SAFETY: pages of ours that stay until they are unregistered, by the contract.
            unsafe { (api.cuMemHostRegister_v2)(at.cast(), size.as_usize(), PORTABLE) }
        })
    }

    unsafe fn unregister(&self, at: *mut u8, _size: Bytes) -> Result<()> {
        // SAFETY: registered at this address, with no copy in flight, by the contract.
        self.core.call("cuMemHostUnregister", |api| unsafe { (api.cuMemHostUnregister)(at.cast()) })
    }

    fn stage(&self, size: Bytes) -> Result<*mut u8> {
        let mut at: *mut c_void = ptr::null_mut();
        self.core.call("cuMemHostAlloc", |api| {
            // SAFETY: writes one pointer.
            unsafe { (api.cuMemHostAlloc)(&raw mut at, size.as_usize(), PORTABLE) }
        })?;
        Ok(at.cast())
    }

    unsafe fn unstage(&self, at: *mut u8, _size: Bytes) -> Result<()> {
        // SAFETY: allocated by `stage` and used by no work in flight, by the contract.
        self.core.call("cuMemFreeHost", |api| unsafe { (api.cuMemFreeHost)(at.cast()) })
    }

    fn stream(&self) -> Result<Box<dyn BackendStream>> {
        Ok(Box::new(stream::CudaStream::new(&self.core)?))
    }

    // The context is the frameworks' too, so their streams are waited for with ours.
    fn synchronize(&self) -> Result<()> {
        // SAFETY: takes nothing; waits for the context that is current, which is ours.
        self.core.call("cuCtxSynchronize", |api| unsafe { (api.cuCtxSynchronize)() })
    }
}

#[cfg(test)]
mod tests {
    use super::DIGEST_PTX;

    #[test]
    fn the_ptx_was_compiled_from_the_source_beside_it() {
        let source = include_bytes!("../../kernels/digest.cu");
        let hash = source.iter().fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
            (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let expected = format!("// compiled from digest.cu, FNV-1a {hash:016x}");
        assert_eq!(DIGEST_PTX.lines().next(), Some(expected.as_str()), "run `cargo xtask ptx`");
    }
}
