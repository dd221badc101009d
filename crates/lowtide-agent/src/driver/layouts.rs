//! Structures that a program gives to the driver, with plain numbers where C may put any.

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
const READ_AND_WRITE: u32 = 3;

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

impl Access {
    /// Lets a device read and write.
    pub(crate) fn all(device: DeviceId) -> Access {
        let DeviceId::Cuda(ordinal) = device else { unreachable!("the agent has CUDA devices") };
        let location = Location { kind: ON_DEVICE, id: ordinal.cast_signed() };
        Access { location, flags: READ_AND_WRITE }
    }
}

/// The shape of an array of one or two dimensions: `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayShape {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// The shape of an array of up to three dimensions: `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayShape3d {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

impl ArrayShape {
    /// Returns the size of the elements. The driver may take more for their layout.
    pub(crate) fn bytes(self) -> usize {
        bytes([self.width, self.height, 1], self.format, self.channels)
    }
}

impl ArrayShape3d {
    /// Returns the size of the elements. The driver may take more for their layout.
    pub(crate) fn bytes(self) -> usize {
        bytes([self.width, self.height, self.depth], self.format, self.channels)
    }
}

fn bytes(sides: [usize; 3], format: u32, channels: u32) -> usize {
    // By the driver's numbers: 8, 16 or 32 bits; a format that is not listed counts as a byte.
    let element = match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    };
    // A side of zero is a dimension that the array does not have.
    let elements = sides.into_iter().map(|side| side.max(1)).fold(1, usize::saturating_mul);
    elements.saturating_mul(element).saturating_mul(channels as usize)
}

/// A tile of a sparse array and the memory under it: `CUarrayMapInfo`. Only the handle matters here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayMapping {
    /// The array, the tile, what to do, and the type of the handle.
    before: [u64; 8],
    pub(crate) handle: u64,
    /// The offset in the memory, devices, flags.
    after: [u64; 3],
}

/// A structure that the driver takes by value: the handle of memory or of an event of another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);
