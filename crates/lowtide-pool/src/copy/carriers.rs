//! What carries bytes between the device and backups: streams and staging buffers, kept from one turn to the next.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowtide_device::{Bytes, Device, Stream};

use crate::Result;
use crate::backups::slab::Form;
use crate::copy::feed::Feed;
use crate::copy::handover::{LaneRoom, Way};
use crate::copy::piece::{PIECE, StagingBuffer};
use crate::copy::retry::twice;
use crate::copy::ring::PACKING_STREAMS;
use crate::copy::shares::Mover;
use crate::policy::Policy;

/// The number of streams on which kernels read host memory: while one begins or ends, another reads.
const READING_STREAMS: usize = 2;

/// What each of two lanes may have in flight: few pieces, so that the other finds some. Direct pieces are
/// for gaps on the link, and the lane of kernels takes one only where it has nothing else.
pub(crate) const COPY_ENGINE_ROOM: LaneRoom = LaneRoom { most: 3, filled_up_to: 2 };
pub(crate) const KERNELS_ROOM: LaneRoom = LaneRoom { most: READING_STREAMS, filled_up_to: 1 };
pub(crate) const NO_ROOM: LaneRoom = LaneRoom { most: 0, filled_up_to: 0 };

/// A copy of fewer bytes has one lane.
const TWO_LANES_LEAST: Bytes = Bytes(4 * PIECE);

/// Streams and staging buffers.
pub(crate) struct Carriers {
    device: Device,
    copies: Stream,
    /// For packing and unpacking, in turn. None where the policy does not pack.
    packs: Vec<Stream>,
    /// For kernels that read host memory, in turn. None where they do not help.
    reads: Vec<Stream>,
    /// The bytes of a wake in which they help.
    pub(crate) kernel_copies: Bytes,
    /// The number of pieces that were packed or unpacked, of those that kernels read, and of sleeps.
    packed: AtomicUsize,
    pub(crate) read: AtomicUsize,
    sleeps: AtomicU64,
    /// For digests and fills beside the copies.
    pub(crate) checks: Stream,
    buffers: Mutex<Vec<StagingBuffer>>,
}

impl Carriers {
    /// Returns the carriers of a turn, made if there are none, with nothing left over from a turn that
    /// failed.
    pub(crate) fn ready<'a>(
        kept: &'a mut Option<Carriers>,
        device: &Device,
        policy: &Policy,
    ) -> lowtide_device::Result<&'a mut Carriers> {
        match kept {
            Some(carriers) => carriers.settle()?,
            None => *kept = Some(Carriers::new(device, policy)?),
        }
        Ok(kept.as_mut().expect("they were there, or were just made"))
    }

    /// Waits for all copies: what they held is let go.
    pub(crate) fn settle(&self) -> lowtide_device::Result<()> {
        for stream in self.packs.iter().chain(&self.reads).chain([&self.copies]) {
            twice(|| stream.synchronize())?;
        }
        twice(|| self.checks.synchronize())
    }

    pub(crate) fn new(device: &Device, policy: &Policy) -> lowtide_device::Result<Carriers> {
        let streams = |count| (0..count).map(|_| device.stream()).collect::<Result<Vec<_>, _>>();
        let packs = policy.packing && device.packs();
        Ok(Carriers {
            device: device.clone(),
            copies: device.stream()?,
            packs: streams(if packs { PACKING_STREAMS } else { 0 })?,
            reads: streams(if reads(device, policy) { READING_STREAMS } else { 0 })?,
            kernel_copies: policy.kernel_copies,
            packed: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            sleeps: AtomicU64::new(0),
            checks: device.stream()?,
            buffers: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether this sleep checks on the device what it packs. Counts the sleep.
    pub(crate) fn checks_packed(&self, policy: &Policy) -> bool {
        let before = self.sleeps.fetch_add(1, Relaxed);
        policy.packing && policy.compare_each > 0 && before.is_multiple_of(policy.compare_each)
    }

    /// Returns the stream for a piece of this form, and its number.
    pub(crate) fn stream(&self, form: Form, mover: Mover) -> (usize, &Stream) {
        let in_turn = |count: &AtomicUsize, streams: &'_ [Stream]| {
            count.fetch_add(1, Relaxed) % streams.len()
        };
        match (mover, form) {
            (Mover::Kernels, _) => {
                let number = in_turn(&self.read, &self.reads);
                (number, &self.reads[number])
            }
            (Mover::CopyEngine, Form::Packed) if !self.packs.is_empty() => {
                let number = in_turn(&self.packed, &self.packs);
                (number, &self.packs[number])
            }
            (Mover::CopyEngine, _) => (0, &self.copies),
        }
    }

    /// Returns what a lane of this copy may have in flight now.
    pub(crate) fn room(&self, mover: Mover, feed: &Feed) -> LaneRoom {
        match mover {
            Mover::CopyEngine if !self.has_two_lanes(feed) || self.has_helped(feed) => {
                LaneRoom::ALONE
            }
            Mover::CopyEngine => COPY_ENGINE_ROOM,
            Mover::Kernels if self.has_helped(feed) => NO_ROOM,
            Mover::Kernels => KERNELS_ROOM,
        }
    }

    // Whether kernels have helped for as long as they should.
    fn has_helped(&self, feed: &Feed) -> bool {
        feed.progress().done >= self.kernel_copies || feed.shares.is_rested()
    }

    /// Returns whether kernels help in this copy.
    pub(crate) fn has_two_lanes(&self, feed: &Feed) -> bool {
        let is_in = feed.handover.way() == Way::In;
        is_in && !self.reads.is_empty() && feed.total() > TWO_LANES_LEAST
    }

    pub(crate) fn buffers(&self) -> MutexGuard<'_, Vec<StagingBuffer>> {
        // A list that is taken or added to in one step.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Whether kernels help in wakes. They are loaded here, which is in the first sleep; where they cannot be,
// the copy engine does everything.
fn reads(device: &Device, policy: &Policy) -> bool {
    if policy.kernel_copies == Bytes::ZERO || !device.copies_by_kernel() {
        return false;
    }
    let loaded = device.prepare_copies();
    loaded.inspect_err(|error| tracing::warn!(%error, "no kernel helps to copy")).is_ok()
}
