//! The size of a part of the heap.

use lowtide_types::Bytes;

/// A number of nodes and the device memory that they hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// The number of nodes.
    pub nodes: u64,
    /// The device memory that these nodes hold.
    pub bytes: Bytes,
}

impl Size {
    /// Subtracts `part`, which must be contained in `self`.
    pub(crate) fn without(self, part: Size) -> Size {
        Size { nodes: self.nodes - part.nodes, bytes: self.bytes - part.bytes }
    }
}
