//! The CUDA driver as tables of function pointers.
//!
//! A driver is loaded from its library at run time, or built from entry points that a caller hands
//! over: a library that interposes the driver has the real functions and must never call its own
//! hooks.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use libloading::Library;

use super::entry_points::{
    CheckpointCalls, CoreCalls, KernelCalls, LookUp, Missing, PrimaryContextCalls,
};
use super::version::CudaVersion;
use crate::facts::{Attempt, DriverLibrary};
use crate::os::exit;
use crate::os::library;
use crate::{DeviceId, Error, Result};

/// The driver's code for success.
pub(super) const SUCCESS: i32 = 0;
/// The driver's code for a device, or a machine, that is out of memory.
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// The driver's code for work that is not done yet. Not an error.
pub(super) const NOT_READY: i32 = 600;

/// Calls a function of the driver and turns its code into a result, with the function's name.
macro_rules! checked {
    ($driver:expr, $device:expr, $calls:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($name), $device, ($calls.$name)($($argument),*))
    };
}
pub(super) use checked;

/// The CUDA driver, ready to be called.
///
/// A driver has all [`CoreCalls`]. The other groups are optional: where one is missing, only what it
/// is for fails, with [`Error::MissingEntryPoint`].
pub struct Driver {
    core: CoreCalls,
    primary_context: Result<PrimaryContextCalls, Missing>,
    kernels: Result<KernelCalls, Missing>,
    checkpoint: Result<CheckpointCalls, Missing>,
    /// The file that was loaded; `None` where the entry points were handed over.
    library: Option<PathBuf>,
    version: CudaVersion,
}

impl Driver {
    /// Finds, loads and initialises the driver.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the names tried, [`Error::MissingEntryPoint`],
    /// [`Error::DriverTooOld`], or the error of `cuInit`.
    pub fn load() -> Result<Driver> {
        Driver::look_up().1
    }

    /// Loads the driver as [`Driver::load`] does, and returns every name that was tried as well.
    pub fn look_up() -> (Vec<Attempt>, Result<Driver>) {
        match DriverLibrary::Cuda.find(library::load) {
            (tried, Ok((library, path))) => (tried, Driver::start(library, path)),
            (tried, Err(error)) => (tried, Err(error)),
        }
    }

    /// Finds and loads the driver's library, and calls nothing of it.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the names tried.
    pub fn find_library() -> Result<()> {
        DriverLibrary::Cuda.find(library::load).1.map(drop)
    }

    fn start(library: &'static Library, path: PathBuf) -> Result<Driver> {
        let mut look_up = |name: &CStr| {
            // SAFETY: only the address is taken; the library is never unloaded.
            let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
            found.ok().and_then(|found| NonNull::new(*found))
        };
        // SAFETY: the functions that a driver's library exports are of the driver API.
        let mut driver = unsafe { Driver::build(&mut look_up, Some(path)) }?;
        // SAFETY: a fresh driver; may be called any number of times.
        unsafe { checked!(driver, None, driver.core, cuInit(0)) }?;
        driver.finish()?;
        Ok(driver)
    }

    /// Builds a driver from entry points that the caller already has. `look_up` is asked for each
    /// exported name once and returns `None` for a function that does not exist. The driver's
    /// library is neither searched nor loaded, and nothing but these functions is ever called.
    ///
    /// `cuInit` is left to the caller and must have succeeded before: what lowtide registers for the
    /// end of the process has to run before the driver's own exit handlers.
    ///
    /// # Safety
    /// What `look_up` returns for a name must be the CUDA driver's function of that name, or one
    /// with the same type and meaning, and must stay valid until the process ends.
    ///
    /// # Errors
    /// [`Error::MissingEntryPoint`] if one of [`CoreCalls`] is missing, [`Error::DriverTooOld`], or
    /// the error of `cuDriverGetVersion`.
    pub unsafe fn from_entry_points(
        mut look_up: impl FnMut(&CStr) -> Option<NonNull<c_void>>,
    ) -> Result<Driver> {
        // SAFETY: the caller's promise.
        let mut driver = unsafe { Driver::build(&mut look_up, None) }?;
        driver.finish()?;
        Ok(driver)
    }

    /// Looks all entry points up and calls none.
    ///
    /// # Safety
    /// As for [`Driver::from_entry_points`].
    unsafe fn build(look_up: LookUp<'_>, library: Option<PathBuf>) -> Result<Driver> {
        // SAFETY: the caller's promise, here and below.
        let core = unsafe { CoreCalls::look_up(look_up) };
        let core = core.map_err(|missing| missing.error(library.as_deref()))?;
        // SAFETY: as above.
        let primary_context = unsafe { PrimaryContextCalls::look_up(look_up) };
        // SAFETY: as above.
        let kernels = unsafe { KernelCalls::look_up(look_up) };
        // SAFETY: as above.
        let checkpoint = unsafe { CheckpointCalls::look_up(look_up) };
        let version = CudaVersion::from_raw(0);
        Ok(Driver { core, primary_context, kernels, checkpoint, library, version })
    }

    /// Reads the version of an initialised driver and prepares for the end of the process.
    fn finish(&mut self) -> Result<()> {
        exit::watch(&exit::OF_DRIVERS);
        let mut raw = 0;
        // SAFETY: writes one int.
        unsafe { checked!(self, None, self.core, cuDriverGetVersion(&raw mut raw)) }?;
        self.version = CudaVersion::from_raw(raw);
        if self.version < CudaVersion::LEAST {
            return Err(Error::DriverTooOld { found: self.version, needed: CudaVersion::LEAST });
        }
        Ok(())
    }

    /// Returns the functions that every driver has. Calling them is unsafe; see NVIDIA's driver API
    /// reference for what each expects.
    pub fn core(&self) -> &CoreCalls {
        &self.core
    }

    /// Returns the functions for primary contexts.
    ///
    /// # Errors
    /// [`Error::MissingEntryPoint`] with the first function that the driver lacks.
    pub fn primary_context(&self) -> Result<&PrimaryContextCalls> {
        self.available(&self.primary_context)
    }

    /// Returns the functions for modules and launches.
    ///
    /// # Errors
    /// [`Error::MissingEntryPoint`] with the first function that the driver lacks.
    pub fn kernels(&self) -> Result<&KernelCalls> {
        self.available(&self.kernels)
    }

    /// Returns the functions that take a process off the device.
    ///
    /// # Errors
    /// [`Error::MissingEntryPoint`] with the first function that the driver lacks.
    pub fn checkpoint(&self) -> Result<&CheckpointCalls> {
        self.available(&self.checkpoint)
    }

    fn available<'a, T>(&self, group: &'a Result<T, Missing>) -> Result<&'a T> {
        group.as_ref().map_err(|missing| missing.error(self.path()))
    }

    /// Returns the file that was loaded; `None` if the entry points were handed over.
    pub fn path(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// Returns the version of the driver API.
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// Turns the result code of a call into a result.
    ///
    /// # Errors
    /// [`Error::Driver`] with the driver's own name for the code.
    pub fn check(
        &self,
        call: &'static str,
        device: impl Into<Option<DeviceId>>,
        code: i32,
    ) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Error::Driver { device: device.into(), call, code, name: self.name_of(code) })
    }

    fn name_of(&self, code: i32) -> String {
        let mut name = ptr::null();
        // SAFETY: writes one pointer, to a static string or null.
        let known = unsafe { (self.core.cuGetErrorName)(code, &raw mut name) } == SUCCESS;
        if !known || name.is_null() {
            return "an error this driver has no name for".to_owned();
        }
        // SAFETY: the driver's static C string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Returns the number of devices that the driver shows to this process.
    ///
    /// # Errors
    /// The error of `cuDeviceGetCount`.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one int.
        unsafe { checked!(self, None, self.core, cuDeviceGetCount(&raw mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

impl Missing {
    fn error(self, library: Option<&Path>) -> Error {
        let library = library.map(Path::to_owned);
        Error::MissingEntryPoint { name: self.name, since: self.since, library }
    }
}
