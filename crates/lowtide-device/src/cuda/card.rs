//! A GPU's description of itself, which the driver gives without a context.
#![allow(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUuuid,
};

use lowtide_types::printable_bytes;

use super::driver::{Driver, checked};
use crate::{Bytes, DeviceId, Result};

/// A GPU's description of itself.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(super) device: CUdevice,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) total: Bytes,
    pub(crate) page: Bytes,
    pub(crate) compute_capability: (i32, i32),
    pub(super) multiprocessors: i32,
    pub(crate) virtual_memory: bool,
    /// Set where kernels use registered host memory under the addresses of the host.
    pub(super) same_addresses: bool,
    /// Set where a file descriptor gives another process a chunk.
    pub(super) shares: bool,
}

impl Driver {
    /// Returns the driver's handle for the device of this ordinal.
    pub(super) fn device(&self, ordinal: u32) -> Result<CUdevice> {
        let mut device = 0;
        let wanted = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let id = DeviceId::Cuda(ordinal);
        // SAFETY: writes one int.
        unsafe { checked!(self, id, self.core(), cuDeviceGet(&raw mut device, wanted)) }?;
        Ok(device)
    }

    /// Describes a device. Creates no context.
    pub(crate) fn card(&self, ordinal: u32) -> Result<Card> {
        use CUdevice_attribute as Attribute;
        let (id, device, core) = (DeviceId::Cuda(ordinal), self.device(ordinal)?, self.core());
        let (mut name, mut uuid, mut total) = ([0 as c_char; 128], CUuuid { bytes: [0; 16] }, 0);
        // SAFETY: writes at most 128 bytes, ended by a zero.
        unsafe { checked!(self, id, core, cuDeviceGetName(name.as_mut_ptr(), 128, device)) }?;
        // SAFETY: writes 16 bytes.
        unsafe { checked!(self, id, core, cuDeviceGetUuid_v2(&raw mut uuid, device)) }?;
        // SAFETY: writes one size.
        unsafe { checked!(self, id, core, cuDeviceTotalMem_v2(&raw mut total, device)) }?;
        let attribute = |which| -> Result<i32> {
            let mut value = 0;
            let to = &raw mut value;
            // SAFETY: writes one int.
            unsafe { checked!(self, id, core, cuDeviceGetAttribute(to, which, device)) }?;
            Ok(value)
        };
        // SAFETY: the driver ended the name with a zero, within the array.
        let name = printable_bytes(unsafe { CStr::from_ptr(name.as_ptr()) }.to_bytes());
        Ok(Card {
            device,
            name,
            uuid: uuid_text(&uuid.bytes.map(|byte| byte.to_ne_bytes()[0])),
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
            same_addresses: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            )? != 0,
            shares: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )? != 0,
        })
    }

    fn granularity(&self, id: DeviceId, device: CUdevice) -> Result<Bytes> {
        let mut granularity = 0;
        let properties = chunk_properties(device, false);
        let which = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let (to, of) = (&raw mut granularity, &raw const properties);
        // SAFETY: writes one size, reads one struct; both are locals.
        unsafe { checked!(self, id, self.core(), cuMemGetAllocationGranularity(to, of, which)) }?;
        Ok(Bytes(granularity as u64))
    }
}

/// Returns the properties of every chunk: pinned memory of the device, which other processes may be given if the device
/// shares. That costs nothing (docs/figures.md).
pub(super) fn chunk_properties(device: CUdevice, shares: bool) -> CUmemAllocationProp {
    // SAFETY: a C struct of integers and a pointer, for which zero is a value.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    if shares {
        properties.requestedHandleTypes =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties
}

/// Returns a device as the virtual-memory calls name it.
pub(super) fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Returns the UUID of a card as NVML writes it, so that both name the same card.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    let mut text = "GPU-".to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
