//! What memory is made with, as a program says it to `cuMemCreate`.

use lowtide_types::DeviceId;

/// The layout of `CUmemAllocationProp`, with plain numbers where C may put any.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows_data: usize,
    compression: u8,
    /// Whether a network card may be told about the memory.
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// The layout of `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    kind: u32,
    id: i32,
}

const PINNED: u32 = 1;
const ON_DEVICE: u32 = 1;

impl Properties {
    /// Returns the device of memory that can be made anew and is then the same to the program: pinned, on a
    /// device, not compressed, for no special use. `None` for any other memory.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        let Properties { kind, location, windows_data, compression, usage, reserved, .. } = *self;
        let is_known = kind == PINNED
            && location.kind == ON_DEVICE
            && (windows_data, compression, usage, reserved) == (0, 0, 0, [0; 4]);
        u32::try_from(location.id).ok().filter(|_| is_known).map(DeviceId::Cuda)
    }
}

/// The layout of `CUmemAccessDesc`: what a device may do with a mapping.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) location: Location,
    flags: u32,
}
