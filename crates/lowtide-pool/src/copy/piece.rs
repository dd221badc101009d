//! Pieces: the unit of a copy between the device and backups.

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Bytes, HostMemory, HostPages, Reservation, Result};

use crate::backups::slab::Memory;
use crate::backups::slab::{Form, PAGE};
use crate::copy::handover::{Staged, Way};

/// The size of a piece. Each copy leaves the link idle for some 2 µs, which is 1.5% of a copy of
/// 8 MiB; larger pieces want larger buffers, and what is in them should still be in the caches when
/// the other side reads it.
pub(crate) const PIECE: u64 = 8 << 20;
/// The size of a part, which one thread copies, so that several work on one piece. Pages have a
/// lock each.
const PART: u64 = 2 << 20;

/// The size of a staging buffer. A piece begins there as far behind the beginning of a part as it does
/// in its backup, so that a part is one page on both sides.
pub(crate) const BUFFER: u64 = PIECE + PART;

/// The bases of the pages of a packed piece.
pub(crate) type Bases = [u8; (PIECE / PAGE) as usize];

/// Neighbouring bytes of the device, at most [`PIECE`] of them.
pub(crate) struct Piece {
    /// The number of the chunk it is in.
    pub(crate) chunk: usize,
    pub(crate) reservation: Reservation,
    pub(crate) offset: u64,
    pub(crate) memory: Memory,
    pub(crate) at: Bytes,
    pub(crate) size: Bytes,
    /// The form of its pages on the host.
    pub(crate) form: Form,
    /// The bases of its pages, where they are packed on the way out.
    pub(crate) bases: Bases,
}

impl Piece {
    pub(crate) fn pages(&self) -> usize {
        (self.size.0 / PAGE) as usize
    }

    /// Returns the number of its bytes on the host.
    pub(crate) fn host_size(&self) -> Bytes {
        match self.form {
            Form::Raw => self.size,
            Form::Packed => Bytes(self.pages() as u64 * Form::Packed.bytes()),
        }
    }

    /// Returns the range of its bytes on the host, from the beginning of its first part.
    fn stored(&self) -> Range<u64> {
        let start = self.at.0 % PART;
        start..start + self.host_size().0
    }

    pub(crate) fn parts(&self) -> usize {
        self.stored().end.div_ceil(PART) as usize
    }

    /// Returns where it begins in a staging buffer.
    pub(crate) fn in_buffer(&self) -> Bytes {
        Bytes(self.stored().start)
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
        let StagedPiece { piece, pages } = self;
        let (stored, begin) = (piece.stored(), part as u64 * PART);
        let offset = Bytes(stored.start.max(begin));
        let size = Bytes(stored.end.min(begin + PART)) - offset;
        let at = Bytes(piece.at.0 - stored.start) + offset;
        match way {
            Way::Out => pages.write(at, size, |bytes| buffer.read_streaming(offset, bytes))?,
            // The device reads it next: it should find it in the caches.
            Way::In => pages.read(at, size, |bytes| buffer.write_much(offset, bytes))?,
        }
    }
}
