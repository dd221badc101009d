//! Pieces: what goes over the link at once, and what is done with one that goes through a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use lowtide_device::{Bytes, HostMemory, HostPages, Reservation, Result};

use crate::memory::Memory;

/// What goes over the link at once. Each copy leaves it idle for some 2 µs, which is 1.5% of a copy of
/// 8 MiB; larger pieces want larger slots, and what is in them should still be in the caches when
/// the other side reads it.
pub(crate) const PIECE: u64 = 8 << 20;
/// What a thread copies at once, so that several work on one piece. Pages have a lock each.
const PART: u64 = 2 << 20;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// Neighbouring bytes, at most [`PIECE`] of them.
pub(crate) struct Piece {
    /// Its own number, for whoever is told that it has arrived.
    pub(crate) number: usize,
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

/// A little memory that the device knows, for pieces whose own memory it does not.
pub(crate) type Slot = Arc<HostMemory>;

/// A piece in its slot.
pub(crate) struct Job {
    pub(crate) piece: Piece,
    pub(crate) slot: Slot,
    pages: Arc<HostPages>,
    /// Parts that are not copied yet.
    left: AtomicUsize,
}

impl Job {
    pub(crate) fn new(piece: Piece, pages: Arc<HostPages>, slot: Slot) -> Arc<Job> {
        let left = AtomicUsize::new(piece.parts());
        Arc::new(Job { piece, slot, pages, left })
    }

    /// Copies a part between the slot and the pages; whether it was the last.
    pub(crate) fn copy(&self, way: Way, part: usize) -> Result<bool> {
        let Job { piece: Piece { at, size, .. }, slot, pages, left } = self;
        let offset = Bytes(part as u64 * PART);
        let (at, size) = (*at + offset, Bytes(PART.min(size.0 - offset.0)));
        match way {
            Way::Out => pages.write(at, size, |bytes| slot.read_streaming(offset, bytes))??,
            // The device reads it next: it should find it in the caches.
            Way::In => pages.read(at, size, |bytes| slot.write_much(offset, bytes))??,
        }
        Ok(left.fetch_sub(1, SeqCst) == 1)
    }
}
