//! The context in which a CUDA device works, and how calls are made in it.
//!
//! Every call makes that context current and puts the caller's back, and sets this thread's capture
//! mode to relaxed and back, so that our housekeeping never invalidates a graph that is being
//! captured.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUcontext, CUfunction, CUmodule};

use super::card::Card;
use super::driver::{Driver, checked};
use super::entry_points::CoreCalls;
use super::kernels::Kernel;
use crate::os::exit;
use crate::os::process::Generation;
use crate::sync::lock;
use crate::{DeviceId, Error, Result};

/// The driver's number for `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// The context in which a CUDA device works.
#[derive(Debug, Clone, Copy)]
pub enum Context {
    /// The primary context of the device with this ordinal, which the frameworks in the process
    /// share. It is retained for as long as the device lives, and so created if nobody else has.
    Primary(u32),
    /// A context of the caller's. lowtide neither creates, retains nor destroys it.
    Borrowed(BorrowedContext),
}

/// A context that belongs to another part of the process.
#[derive(Debug, Clone, Copy)]
pub struct BorrowedContext(NonNull<c_void>);

// SAFETY: a context is a name that the driver accepts from any thread.
unsafe impl Send for BorrowedContext {}
// SAFETY: as above.
unsafe impl Sync for BorrowedContext {}

impl BorrowedContext {
    /// Borrows a context, a `CUcontext` of the driver that it will be used with.
    ///
    /// # Safety
    /// The context must stay alive until every device that works in it, and everything taken from
    /// those devices, has been dropped.
    pub unsafe fn new(context: NonNull<c_void>) -> BorrowedContext {
        BorrowedContext(context)
    }
}

/// Makes one call of [`CoreCalls`] in a session's context.
macro_rules! call {
    ($session:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $session.call(stringify!($name), |api| (api.$name)($($argument),*))
    };
}
pub(super) use call;

/// The driver, a card and the context in which all calls are made: what a back end and its streams
/// share.
pub(super) struct Session {
    pub(super) driver: Arc<Driver>,
    pub(super) id: DeviceId,
    pub(super) card: Card,
    context: CUcontext,
    /// True for the primary context, which this session retains.
    is_retained: bool,
    /// The modules that were loaded, with their functions.
    modules: Mutex<Vec<Module>>,
    made_in: Generation,
    /// Calls made in the context; what makes it current is not counted.
    calls: AtomicU64,
}

/// A module of the context, and the functions of its kernels.
struct Module {
    module: CUmodule,
    functions: Vec<(Kernel, CUfunction)>,
}

// SAFETY: contexts, modules and functions are names that the driver accepts from any thread.
unsafe impl Send for Session {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Session {}

impl Session {
    pub(super) fn open(driver: Arc<Driver>, context: Context) -> Result<Session> {
        let ordinal = match context {
            Context::Primary(ordinal) => ordinal,
            Context::Borrowed(context) => ordinal_of(&driver, context)?,
        };
        let (id, count) = (DeviceId::Cuda(ordinal), driver.device_count()?);
        if ordinal >= count {
            let known = std::iter::once(DeviceId::Host).chain((0..count).map(DeviceId::Cuda));
            return Err(Error::UnknownDevice { wanted: id, known: known.collect() });
        }
        let card = driver.card(ordinal)?;
        if !card.virtual_memory {
            return Err(Error::NoVirtualMemory { device: id, name: card.name });
        }
        let (context, is_retained) = match context {
            Context::Primary(_) => (retain_primary(&driver, id, &card)?, true),
            Context::Borrowed(context) => (context.0.as_ptr().cast(), false),
        };
        let (modules, calls) = (Mutex::default(), AtomicU64::new(0));
        let made_in = Generation::current();
        Ok(Session { driver, id, card, context, is_retained, modules, made_in, calls })
    }

    /// Makes one driver call in the context, and restores what the caller had.
    pub(super) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&CoreCalls) -> i32,
    ) -> Result<()> {
        let _current = Current::enter(&self.driver, self.id, self.context)?;
        self.calls.fetch_add(1, Relaxed);
        self.driver.check(name, self.id, call(self.driver.core()))
    }

    /// Returns how many calls were made so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Returns a kernel, loaded with its module when it is first needed: a module takes device memory.
    pub(super) fn function(&self, wanted: Kernel) -> Result<CUfunction> {
        let mut modules = lock(&self.modules);
        let of_wanted =
            |(kernel, function): &(Kernel, CUfunction)| (*kernel == wanted).then_some(*function);
        let mut known = modules.iter().flat_map(|module| &module.functions);
        if let Some(function) = known.find_map(of_wanted) {
            return Ok(function);
        }
        let loaded = self.load(wanted)?;
        let function = loaded.functions.iter().find_map(of_wanted);
        modules.push(loaded);
        Ok(function.expect("a module has the kernel that it was loaded for"))
    }

    fn load(&self, wanted: Kernel) -> Result<Module> {
        let ((image, kernels), calls) = (wanted.module(), self.driver.kernels()?);
        let mut loaded = Module { module: ptr::null_mut(), functions: Vec::new() };
        self.call("cuModuleLoadData", |_| {
            // SAFETY: writes one pointer; the image is PTX text ended by a zero.
            unsafe { (calls.cuModuleLoadData)(&raw mut loaded.module, image.as_ptr().cast()) }
        })?;
        for kernel in kernels {
            let mut function = ptr::null_mut();
            let found = self.call("cuModuleGetFunction", |_| {
                let name = kernel.name().as_ptr();
                // SAFETY: writes one pointer; the module was just loaded.
                unsafe { (calls.cuModuleGetFunction)(&raw mut function, loaded.module, name) }
            });
            if let Err(error) = found {
                self.unload(loaded.module);
                return Err(error);
            }
            loaded.functions.push((*kernel, function));
        }
        Ok(loaded)
    }

    // Nothing may be running: streams hold the session.
    fn unload(&self, module: CUmodule) {
        twice("cuModuleUnload", || {
            let calls = self.driver.kernels()?;
            // SAFETY: loaded by `load`, and nothing is running, by the caller.
            self.call("cuModuleUnload", |_| unsafe { (calls.cuModuleUnload)(module) })
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.made_in.is_current() || exit::has_begun() {
            return;
        }
        let modules = std::mem::take(&mut *lock(&self.modules));
        for loaded in &modules {
            self.unload(loaded.module);
        }
        if self.is_retained {
            twice("cuDevicePrimaryCtxRelease", || {
                let (calls, device) = (self.driver.primary_context()?, self.card.device);
                // SAFETY: retained once, by `open`.
                unsafe {
                    checked!(self.driver, self.id, calls, cuDevicePrimaryCtxRelease_v2(device))
                }
            });
        }
    }
}

fn retain_primary(driver: &Driver, id: DeviceId, card: &Card) -> Result<CUcontext> {
    let calls = driver.primary_context()?;
    let mut context = ptr::null_mut();
    let to = &raw mut context;
    // SAFETY: writes one pointer; the session that is being opened owns the retained context.
    unsafe { checked!(driver, id, calls, cuDevicePrimaryCtxRetain(to, card.device)) }?;
    Ok(context)
}

// The driver tells a context's device by its handle; lowtide counts devices as the driver does.
fn ordinal_of(driver: &Driver, context: BorrowedContext) -> Result<u32> {
    let mut device = 0;
    {
        let _current = Current::enter(driver, None, context.0.as_ptr().cast())?;
        // SAFETY: writes one int; the context is current.
        unsafe { checked!(driver, None, driver.core(), cuCtxGetDevice(&raw mut device)) }?;
    }
    for ordinal in 0..driver.device_count()? {
        if driver.device(ordinal)? == device {
            return Ok(ordinal);
        }
    }
    Err(Error::UnknownContext)
}

/// Gives something back where a failure can only be logged: tries twice, then gives up.
pub(super) fn twice(what: &'static str, mut give_back: impl FnMut() -> Result<()>) {
    if let Err(error) = give_back().or_else(|_| give_back()) {
        tracing::error!(what, %error, "never taken back");
    }
}

/// A context is current and this thread's capture mode relaxed, while this lives.
struct Current<'a> {
    driver: &'a Driver,
    id: Option<DeviceId>,
    mode: u32,
}

impl<'a> Current<'a> {
    fn enter(
        driver: &'a Driver,
        id: impl Into<Option<DeviceId>>,
        context: CUcontext,
    ) -> Result<Current<'a>> {
        let (id, mut mode) = (id.into(), RELAXED);
        // SAFETY: the context is retained by the session or kept alive by its owner.
        unsafe { checked!(driver, id, driver.core(), cuCtxPushCurrent_v2(context)) }?;
        exchange_mode(driver, id, &mut mode).inspect_err(|_| pop(driver, id))?;
        Ok(Current { driver, id, mode })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let (driver, id) = (self.driver, self.id);
        twice("cuThreadExchangeStreamCaptureMode", || exchange_mode(driver, id, &mut self.mode));
        pop(driver, id);
    }
}

fn exchange_mode(driver: &Driver, id: Option<DeviceId>, mode: &mut u32) -> Result<()> {
    // SAFETY: reads and writes one int.
    unsafe { checked!(driver, id, driver.core(), cuThreadExchangeStreamCaptureMode(mode)) }
}

fn pop(driver: &Driver, id: Option<DeviceId>) {
    twice("cuCtxPopCurrent", || {
        let mut popped = ptr::null_mut();
        // SAFETY: writes one pointer; pops what `Current::enter` pushed.
        unsafe { checked!(driver, id, driver.core(), cuCtxPopCurrent_v2(&raw mut popped)) }
    });
}
