//! The shapes of arrays, as a program gives them to the driver.

/// Memory of an array of one or two dimensions: `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// Memory of an array of up to three dimensions: `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Deep {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

impl Flat {
    /// Returns the size of the elements. The driver may take more for their layout.
    pub(crate) fn bytes(self) -> usize {
        bytes([self.width, self.height, 1], self.format, self.channels)
    }
}

impl Deep {
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
