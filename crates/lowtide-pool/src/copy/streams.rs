//! The streams and staging buffers of copies, kept from one turn to the next, and calls that are tried twice.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_device::{Bytes, Chunk, Device, Reservation, Result, Stream};

use crate::copy::packing::{self, PACKING_STREAMS, Ring, RingParts};
use crate::copy::piece::{BUFFER, StagingBuffer};
use crate::policy::Policy;

/// The number of streams on which kernels read host memory: while one begins or ends, another reads.
pub(crate) const READING_STREAMS: usize = 2;

/// The part of the device that moves the bytes of a submitting thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The copy engine; packed pieces go through the ring.
    CopyEngine,
    /// Kernels that read host memory themselves, on the way in.
    Kernels,
}

/// Streams and staging buffers.
pub(crate) struct CopyStreams {
    device: Device,
    copies: Stream,
    /// For packing and unpacking, in turn. None where pages are not packed.
    packs: Vec<Stream>,
    /// For kernels that read host memory, in turn. None where they do not help.
    reads: Vec<Stream>,
    /// Counts packed pieces that the copy engine moved, pieces that kernels read, and sleeps that packed.
    packed: AtomicUsize,
    pub(crate) read: AtomicUsize,
    sleeps: AtomicU64,
    /// For digests and fills beside the copies.
    pub(crate) checks: Stream,
    buffers: Mutex<Vec<StagingBuffer>>,
}

impl CopyStreams {
    pub(crate) fn new(device: &Device, policy: &Policy) -> Result<CopyStreams> {
        let streams = |is_wanted, count: usize| {
            let count = if is_wanted { count } else { 0 };
            (0..count).map(|_| device.stream()).collect::<Result<Vec<_>>>()
        };
        Ok(CopyStreams {
            device: device.clone(),
            copies: device.stream()?,
            packs: streams(packing::is_on(device, policy), PACKING_STREAMS)?,
            reads: streams(kernels_help(device), READING_STREAMS)?,
            packed: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            sleeps: AtomicU64::new(0),
            checks: device.stream()?,
            buffers: Mutex::default(),
        })
    }

    /// Returns the streams that are kept, made if there are none.
    pub(crate) fn kept<'a>(
        kept: &'a mut Option<CopyStreams>,
        device: &Device,
        policy: &Policy,
    ) -> Result<&'a mut CopyStreams> {
        if kept.is_none() {
            *kept = Some(CopyStreams::new(device, policy)?);
        }
        Ok(kept.as_mut().expect("they were there, or were just made"))
    }

    /// Returns the streams of a turn, made if there are none, with nothing left over from a turn that
    /// failed.
    pub(crate) fn ready<'a>(
        kept: &'a mut Option<CopyStreams>,
        device: &Device,
        policy: &Policy,
    ) -> Result<&'a mut CopyStreams> {
        if let Some(streams) = kept {
            streams.settle()?;
        }
        CopyStreams::kept(kept, device, policy)
    }

    /// Waits for all copies: what they held is let go.
    pub(crate) fn settle(&self) -> Result<()> {
        let all = self.packs.iter().chain(&self.reads).chain([&self.copies, &self.checks]);
        all.into_iter().try_for_each(|stream| twice(|| stream.synchronize()))
    }

    /// Opens the ring of a sleep that packs, where the device has room for it. The first such sleep and then
    /// every n-th checks what it packs.
    pub(crate) fn ring_of_sleep(&self, policy: &Policy) -> Option<Ring> {
        let each = policy.numbers.compare_each;
        let checks = each > 0 && self.sleeps.load(Relaxed).is_multiple_of(each);
        let parts = RingParts { packed: PACKING_STREAMS, checks, snapshot: false };
        let ring = Ring::open(&self.device, Bytes::ZERO, parts)?;
        self.sleeps.fetch_add(1, Relaxed);
        Some(ring)
    }

    /// Opens the ring of a wake, where the device has room for it beside what the wake needs.
    pub(crate) fn ring_of_wake(&self, needed: Bytes) -> Option<Ring> {
        let parts = RingParts { packed: self.packs.len(), checks: false, snapshot: false };
        Ring::open(&self.device, needed, parts)
    }

    /// Opens the ring of backups ahead of time, where the device has room for it. It checks all that is packed,
    /// which takes no part of the link. Where there is no room for that, pages are copied as they are.
    pub(crate) fn ring_of_backups_ahead(&self, policy: &Policy) -> Option<Ring> {
        let checks = policy.numbers.compare_each > 0;
        let open = |packed| {
            let parts = RingParts { packed, checks, snapshot: true };
            Ring::open(&self.device, Bytes::ZERO, parts)
        };
        (0..=self.packs.len().min(1)).rev().find_map(open)
    }

    /// Returns whether kernels help to copy in.
    pub(crate) fn has_kernels(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns the stream for a piece, and its number among those of the same kind.
    pub(crate) fn next(&self, engine: Engine, is_packed: bool) -> (usize, &Stream) {
        let (count, streams) = match engine {
            Engine::Kernels => (&self.read, &self.reads),
            Engine::CopyEngine if is_packed && !self.packs.is_empty() => {
                (&self.packed, &self.packs)
            }
            Engine::CopyEngine => return (0, &self.copies),
        };
        let number = count.fetch_add(1, Relaxed) % streams.len();
        (number, &streams[number])
    }

    /// Makes a staging buffer.
    pub(crate) fn buffer(&self) -> Result<StagingBuffer> {
        self.device.host_memory_here(Bytes(BUFFER))
    }

    /// Takes a staging buffer that nothing uses, or makes one.
    pub(crate) fn take_buffer(&self) -> Result<StagingBuffer> {
        let kept = self.buffers().pop();
        kept.map_or_else(|| self.buffer(), Ok)
    }

    /// Returns the staging buffers that nothing uses.
    pub(crate) fn buffers(&self) -> MutexGuard<'_, Vec<StagingBuffer>> {
        // A list that is taken or added to in one step.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Loads the kernels that help in wakes, here, which is in the first sleep. Where they cannot be loaded, the copy
// engine does everything.
fn kernels_help(device: &Device) -> bool {
    let load = || device.prepare_copies();
    let refused = |error: &lowtide_device::Error| tracing::warn!(%error, "no kernel helps to copy");
    device.copies_by_kernel() && load().inspect_err(refused).is_ok()
}

/// Does what the device may refuse, and once more if it does: one refusal says little, and a turn
/// that is undone costs more than a second try.
pub(crate) fn twice<T, E>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    work().or_else(|_| work())
}

/// Takes one chunk from its place, at the second try if need be.
pub(crate) fn unmap(reservation: &Reservation, range: &Range<u64>) -> Result<Chunk> {
    twice(|| unmap_once(reservation, range))
}

/// Takes one chunk from its place.
pub(crate) fn unmap_once(reservation: &Reservation, range: &Range<u64>) -> Result<Chunk> {
    let (at, size) = (Bytes(range.start), Bytes(range.end - range.start));
    let taken = reservation.unmap(at, size)?;
    Ok(taken.into_iter().next().expect("one chunk is mapped there").1)
}
