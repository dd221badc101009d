//! Pieces: the unit of a copy between the device and backups.

use std::sync::Arc;

use lowtide_device::{Bytes, HostMemory, HostPages, Reservation, Result};

use crate::handover::{Staged, Way};
use crate::memory::Memory;

/// The size of a piece. Each copy leaves the link idle for some 2 µs, which is 1.5% of a copy of
/// 8 MiB; larger pieces want larger buffers, and what is in them should still be in the caches when
/// the other side reads it.
pub(crate) const PIECE: u64 = 8 << 20;
/// The size of a part, which one thread copies, so that several work on one piece. Pages have a
/// lock each.
const PART: u64 = 2 << 20;

/// Neighbouring bytes, at most [`PIECE`] of them.
pub(crate) struct Piece {
    /// The number of the chunk it is in.
    pub(crate) chunk: usize,
    pub(crate) reservation: Reservation,
    pub(crate) offset: u64,
    pub(crate) memory: Memory,
    pub(crate) at: Bytes,
    pub(crate) size: Bytes,
}

impl Piece {
    pub(crate) fn parts(&self) -> usize {
        self.size.0.div_ceil(PART) as usize
    }
}

/// A piece in memory that the device knows.
pub(crate) struct DirectPiece {
    pub(crate) piece: Piece,
    pub(crate) memory: Arc<HostMemory>,
}

/// A piece in plain pages, which goes through a staging buffer.
pub(crate) struct StagedPiece {
    pub(crate) piece: Piece,
    pub(crate) pages: Arc<HostPages>,
}

/// A little memory that the device knows, for pieces whose own memory it does not.
pub(crate) type StagingBuffer = Arc<HostMemory>;

impl Staged for StagedPiece {
    fn parts(&self) -> usize {
        self.piece.parts()
    }
}

impl StagedPiece {
    /// Copies a part between the buffer and the pages.
    pub(crate) fn copy(&self, buffer: &StagingBuffer, way: Way, part: usize) -> Result<()> {
        let StagedPiece { piece: Piece { at, size, .. }, pages } = self;
        let offset = Bytes(part as u64 * PART);
        let (at, size) = (*at + offset, Bytes(PART.min(size.0 - offset.0)));
        match way {
            Way::Out => pages.write(at, size, |bytes| buffer.read_streaming(offset, bytes))?,
            // The device reads it next: it should find it in the caches.
            Way::In => pages.read(at, size, |bytes| buffer.write_much(offset, bytes))?,
        }
    }
}
