//! Pieces: the unit of a copy between the device and backups.

use std::ops::Range;
use std::sync::Arc;

use lowtide_device::{Bytes, HostMemory, Reservation, Result};

use crate::backups::slab::Memory;
use crate::copy::packing::{Form, OnHost, PieceForm};
use crate::copy::queue::{Direction, QueuedPiece};
use crate::policy::{PAGE, PIECE};

/// The size of a part, which one thread copies, so that several work on one piece. Pages have a
/// lock each.
const PART: u64 = PAGE;

/// The size of a staging buffer. A piece begins there as far behind the beginning of a part as it does
/// in its backup, so that a part is one page on both sides.
pub(crate) const BUFFER: u64 = PIECE + PART;

/// A little memory that the device knows, for pieces whose own memory it does not.
pub(crate) type StagingBuffer = Arc<HostMemory>;

/// Neighbouring pages of the device, at most [`PIECE`] bytes.
#[derive(Clone)]
pub(crate) struct Piece {
    /// The number of the chunk it is in.
    pub(crate) chunk: usize,
    pub(crate) reservation: Reservation,
    pub(crate) offset: u64,
    /// The backup it is in, and where it begins there.
    pub(crate) memory: Memory,
    pub(crate) at: Bytes,
    pub(crate) form: PieceForm,
}

impl QueuedPiece for Piece {
    fn parts(&self) -> usize {
        if self.memory.is_direct() { 0 } else { self.stored().end.div_ceil(PART) as usize }
    }
}

impl Piece {
    pub(crate) fn is_packed(&self) -> bool {
        self.form.form == Form::Packed
    }

    // The range of its bytes on the host, from the beginning of its first part.
    fn stored(&self) -> Range<u64> {
        let start = self.at.0 % PART;
        start..start + self.form.host_size().0
    }

    /// Returns where the device finds it on the host: in a staging buffer, or in its backup.
    pub(crate) fn on_host<'a>(&'a self, buffer: Option<&'a StagingBuffer>) -> OnHost<'a> {
        match (buffer, &self.memory) {
            (Some(buffer), _) => (buffer, Bytes(self.stored().start)),
            (None, Memory::Direct(memory)) => (memory, self.at),
            (None, Memory::Plain(_)) => unreachable!("plain pages go through a buffer"),
        }
    }

    /// Copies a part between a staging buffer and the pages of its backup.
    pub(crate) fn copy(
        &self,
        buffer: &StagingBuffer,
        direction: Direction,
        part: usize,
    ) -> Result<()> {
        let Memory::Plain(pages) = &self.memory else { return Ok(()) };
        let (stored, begin) = (self.stored(), part as u64 * PART);
        let offset = Bytes(stored.start.max(begin));
        let size = Bytes(stored.end.min(begin + PART)) - offset;
        let at = Bytes(self.at.0 - stored.start) + offset;
        match direction {
            Direction::Out => {
                pages.write(at, size, |bytes| buffer.read_streaming(offset, bytes))?
            }
            // The device reads it next: it should find it in the caches.
            Direction::In => pages.read(at, size, |bytes| buffer.write_much(offset, bytes))?,
        }
    }
}
