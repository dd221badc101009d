//! A stream and a little staging memory, to read and write device memory from the host.
//!
//! Each call waits until its bytes are there. This is for single accesses; sleep and wake have
//! faster ways.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide_device::{Bytes, Device, HostMemory, Reservation, Result, Stream};

/// The size of the staging memory, which is copied at once.
const STAGED: Bytes = Bytes::mib(8);

/// A place in a reservation.
pub(crate) type Spot<'a> = (&'a Reservation, Bytes);

/// The hand of a pool, made when it is first needed and kept.
#[derive(Default)]
pub(crate) struct HandCell {
    hand: Mutex<Option<Hand>>,
}

impl HandCell {
    /// Does something with the hand, one caller at a time.
    pub(crate) fn with(
        &self,
        device: &Device,
        work: impl FnOnce(&Hand) -> Result<()>,
    ) -> Result<()> {
        // There is a whole hand or none. Memory that a copy still uses refuses to be written.
        let mut cell = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.is_none() {
            *cell = Some(Hand::new(device)?);
        }
        let hand = cell.as_ref().expect("it was there, or was just made");
        work(hand).inspect_err(|_| {
            // What the stream was given keeps the block's pages pinned until it is waited for.
            if let Err(error) = hand.stream.synchronize() {
                tracing::warn!(%error, "a failed copy may keep pages pinned for now");
            }
        })
    }
}

pub(crate) struct Hand {
    stream: Stream,
    memory: Arc<HostMemory>,
}

impl Hand {
    fn new(device: &Device) -> Result<Hand> {
        Ok(Hand { stream: device.stream()?, memory: device.host_memory_here(STAGED)? })
    }

    pub(crate) fn write(&self, (to, at): Spot<'_>, bytes: &[u8]) -> Result<()> {
        for (part, bytes) in (0..).zip(bytes.chunks(STAGED.as_usize())) {
            let (at, size) = (at + Bytes(part * STAGED.0), Bytes(bytes.len() as u64));
            self.memory.write(Bytes::ZERO, bytes)?;
            self.stream.copy_in((&self.memory, Bytes::ZERO), (to, at), size)?;
            self.stream.synchronize()?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, (from, at): Spot<'_>, bytes: &mut [u8]) -> Result<()> {
        for (part, bytes) in (0..).zip(bytes.chunks_mut(STAGED.as_usize())) {
            let (at, size) = (at + Bytes(part * STAGED.0), Bytes(bytes.len() as u64));
            self.stream.copy_out((from, at), (&self.memory, Bytes::ZERO), size)?;
            self.stream.synchronize()?;
            self.memory.read(Bytes::ZERO, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, at: Spot<'_>, byte: u8, size: Bytes) -> Result<()> {
        if size == Bytes::ZERO {
            return Ok(());
        }
        self.stream.fill(at, byte, size)?;
        self.stream.synchronize()
    }
}
