//! The CUDA driver as a struct of function pointers, found at run time.
//!
//! Every entry point that lowtide calls is listed once, with the CUDA version that brought it. A
//! function that is missing is an error with its name; result codes stay plain numbers, because a
//! newer driver may return one that no list of ours has.
#![allow(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "entry points carry the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmodule, CUstream, CUuuid,
};
use libloading::Library;

use crate::{Attempt, Bytes, DeviceId, Error, Result, exit, library};

/// The least driver that has what lowtide needs: CUDA 12.0, driver 525.
pub(crate) const LEAST_VERSION: i32 = 12000;

/// The driver's code for success.
pub(crate) const SUCCESS: i32 = 0;
/// The driver's code for a device, or a machine, without room.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// The driver's code for work that is not done yet. Not an error.
pub(crate) const NOT_READY: i32 = 600;

macro_rules! entry_points {
    ($( $since:literal $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => {
        /// The entry points that lowtide uses.
        #[expect(missing_docs, reason = "NVIDIA's driver API reference documents each")]
        pub struct EntryPoints {
            $(pub $name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl EntryPoints {
            /// Their names, in the order in which they are looked up.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn load(library: &'static Library, path: &Path) -> Result<EntryPoints> {
                Ok(EntryPoints {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is the driver API's for this name; the library is
                        // never unloaded.
                        let found = unsafe { library.get(symbol) };
                        *found.map_err(|_| Error::MissingSymbol {
                            path: path.to_owned(),
                            symbol: stringify!($name),
                            since: $since,
                        })?
                    },)*
                })
            }
        }
    };
}

entry_points! {
    "2.0" cuInit(flags: c_uint);
    "2.2" cuDriverGetVersion(version: *mut c_int);
    "6.0" cuGetErrorName(code: i32, name: *mut *const c_char);
    "2.0" cuDeviceGetCount(count: *mut c_int);
    "2.0" cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    "2.0" cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    "11.4" cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    "3.2" cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    "2.0" cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    "7.0" cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    "11.0" cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    "4.0" cuCtxPushCurrent_v2(context: CUcontext);
    "4.0" cuCtxPopCurrent_v2(context: *mut CUcontext);
    "2.0" cuCtxSynchronize();
    "10.1" cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    "3.2" cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    "10.2" cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        which: CUmemAllocationGranularity_flags,
    );
    "10.2" cuMemAddressReserve(at: *mut CUdeviceptr, size: usize, align: usize, hint: CUdeviceptr, flags: u64);
    "10.2" cuMemAddressFree(at: CUdeviceptr, size: usize);
    "10.2" cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        properties: *const CUmemAllocationProp,
        flags: u64,
    );
    "10.2" cuMemRelease(handle: CUmemGenericAllocationHandle);
    "10.2" cuMemMap(at: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
    "10.2" cuMemSetAccess(at: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize);
    "10.2" cuMemUnmap(at: CUdeviceptr, size: usize);
    "6.5" cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint);
    "4.0" cuMemHostUnregister(at: *mut c_void);
    "2.2" cuMemHostAlloc(at: *mut *mut c_void, size: usize, flags: c_uint);
    "2.0" cuMemFreeHost(at: *mut c_void);
    "3.2" cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    "3.2" cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    "3.2" cuMemsetD8Async(at: CUdeviceptr, byte: u8, size: usize, stream: CUstream);
    "2.0" cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    "4.0" cuStreamDestroy_v2(stream: CUstream);
    "2.0" cuStreamSynchronize(stream: CUstream);
    "2.0" cuStreamQuery(stream: CUstream);
    "12.0" cuStreamGetId(stream: CUstream, id: *mut u64);
    "2.0" cuEventCreate(event: *mut CUevent, flags: c_uint);
    "4.0" cuEventDestroy_v2(event: CUevent);
    "2.0" cuEventRecord(event: CUevent, stream: CUstream);
    "2.0" cuEventSynchronize(event: CUevent);
    "2.0" cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    "2.0" cuModuleUnload(module: CUmodule);
    "2.0" cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    "4.0" cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

/// A loaded, initialised driver.
pub struct Driver {
    api: EntryPoints,
    library: &'static Library,
    path: PathBuf,
    version: i32,
}

impl Driver {
    /// Finds, loads and initialises the driver.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the names tried, [`Error::MissingSymbol`],
    /// [`Error::DriverTooOld`], or what `cuInit` said.
    pub fn load() -> Result<Driver> {
        Driver::look_up().1
    }

    /// As [`Driver::load`], with every name that was tried, whatever came of it.
    pub fn look_up() -> (Vec<Attempt>, Result<Driver>) {
        match library::CUDA.find(library::load) {
            (tried, Ok((library, path))) => (tried, Driver::start(library, path)),
            (tried, Err(error)) => (tried, Err(error)),
        }
    }

    fn start(library: &'static Library, path: PathBuf) -> Result<Driver> {
        let api = EntryPoints::load(library, &path)?;
        let mut driver = Driver { api, library, path, version: 0 };
        // SAFETY: a fresh driver; may be called any number of times.
        driver.check("cuInit", None, unsafe { (driver.api.cuInit)(0) })?;
        exit::watch(&exit::OF_DRIVERS);
        // SAFETY: writes one int.
        let code = unsafe { (driver.api.cuDriverGetVersion)(&raw mut driver.version) };
        driver.check("cuDriverGetVersion", None, code)?;
        if driver.version < LEAST_VERSION {
            return Err(Error::DriverTooOld { found: driver.version, needed: LEAST_VERSION });
        }
        Ok(driver)
    }

    /// The entry points, for those who know what they do.
    pub fn api(&self) -> &EntryPoints {
        &self.api
    }

    /// An entry point that not every driver has.
    pub fn has(&self, symbol: &CStr) -> bool {
        // SAFETY: only asks whether the name is there.
        unsafe { self.library.get::<*const ()>(symbol.to_bytes_with_nul()) }.is_ok()
    }

    /// The library itself, for entry points beyond lowtide's own (test suites).
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Which file was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The CUDA version it speaks: 1000 × major + 10 × minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// A result code as a result.
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
        let known = unsafe { (self.api.cuGetErrorName)(code, &raw mut name) } == SUCCESS;
        if !known || name.is_null() {
            return "an error this driver has no name for".to_owned();
        }
        // SAFETY: the driver's static C string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// How many devices it shows.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one int.
        let code = unsafe { (self.api.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", None, code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

/// What a device says of itself without a context.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) device: CUdevice,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) total: Bytes,
    pub(crate) page: Bytes,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) multiprocessors: i32,
    pub(crate) virtual_memory: bool,
}

impl Driver {
    /// Asks a device about itself. Makes no context.
    pub(crate) fn card(&self, index: u32) -> Result<Card> {
        use CUdevice_attribute as Attribute;
        let id = DeviceId::Cuda(index);
        let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
        let mut device = 0;
        // SAFETY: writes one int.
        self.check("cuDeviceGet", id, unsafe { (self.api.cuDeviceGet)(&raw mut device, ordinal) })?;
        let mut name = [0 as c_char; 128];
        // SAFETY: writes at most 128 bytes, ended by a zero.
        let code = unsafe { (self.api.cuDeviceGetName)(name.as_mut_ptr(), 128, device) };
        self.check("cuDeviceGetName", id, code)?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        let code = unsafe { (self.api.cuDeviceGetUuid_v2)(&raw mut uuid, device) };
        self.check("cuDeviceGetUuid_v2", id, code)?;
        let mut total = 0;
        // SAFETY: writes one size.
        let code = unsafe { (self.api.cuDeviceTotalMem_v2)(&raw mut total, device) };
        self.check("cuDeviceTotalMem_v2", id, code)?;
        let attribute = |which| -> Result<i32> {
            let mut value = 0;
            // SAFETY: writes one int.
            let code = unsafe { (self.api.cuDeviceGetAttribute)(&raw mut value, which, device) };
            self.check("cuDeviceGetAttribute", id, code)?;
            Ok(value)
        };
        // SAFETY: the driver ended the name with a zero, within the array.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Card {
            device,
            name,
            uuid: format_uuid(&uuid),
            total: Bytes(total as u64),
            page: self.granularity(id, device)?,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            virtual_memory: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            )? != 0,
        })
    }
}

impl Driver {
    fn granularity(&self, id: DeviceId, device: CUdevice) -> Result<Bytes> {
        let mut granularity = 0;
        let properties = chunk_properties(device);
        let which = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: writes one size, reads one struct; both are locals.
        let code = unsafe {
            (self.api.cuMemGetAllocationGranularity)(
                &raw mut granularity,
                &raw const properties,
                which,
            )
        };
        self.check("cuMemGetAllocationGranularity", id, code)?;
        Ok(Bytes(granularity as u64))
    }
}

/// Where a chunk is made, and of what kind.
pub(crate) fn chunk_properties(device: CUdevice) -> CUmemAllocationProp {
    // SAFETY: a C struct of integers and a pointer, for which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

/// A device, as the virtual-memory calls name it.
pub(crate) fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

// As NVML writes it, so that both speak of the same card.
fn format_uuid(uuid: &CUuuid) -> String {
    use std::fmt::Write as _;
    let mut text = "GPU-".to_owned();
    for (index, byte) in uuid.bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{:02x}", byte.to_ne_bytes()[0]);
    }
    text
}
