//! A stream and a little staging memory, to read and write blocks from the host.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide_device::{Bytes, Device, HostMemory, Reservation, Result, Stream};

/// The size of the staging memory, which is copied at once.
const STAGED: Bytes = Bytes::mib(8);

/// The stream and the staging memory with which the host reads and writes blocks, made when they are first
/// needed and kept.
#[derive(Default)]
pub(crate) struct HostAccessCell {
    access: Mutex<Option<HostAccess>>,
}

impl HostAccessCell {
    /// Does something with them, one caller at a time.
    pub(crate) fn with(
        &self,
        device: &Device,
        work: impl FnOnce(&HostAccess) -> Result<()>,
    ) -> Result<()> {
        // There is all of it or nothing. Memory that a copy still uses refuses to be written.
        let mut cell = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.is_none() {
            *cell = Some(HostAccess::new(device)?);
        }
        let access = cell.as_ref().expect("it was there, or was just made");
        work(access).inspect_err(|_| {
            // What the stream was given keeps the block's pages pinned until it is waited for.
            if let Err(error) = access.stream.synchronize() {
                tracing::warn!(%error, "a failed copy may keep pages pinned for now");
            }
        })
    }
}

/// A stream and a little staging memory. Each call waits until its bytes are there: this is for single
/// accesses; sleep and wake have faster ways.
pub(crate) struct HostAccess {
    stream: Stream,
    memory: Arc<HostMemory>,
}

impl HostAccess {
    fn new(device: &Device) -> Result<HostAccess> {
        Ok(HostAccess { stream: device.stream()?, memory: device.host_memory_here(STAGED)? })
    }

    pub(crate) fn write(&self, (to, at): (&Reservation, Bytes), bytes: &[u8]) -> Result<()> {
        for (part, bytes) in (0..).zip(bytes.chunks(STAGED.as_usize())) {
            let (at, size) = (at + Bytes(part * STAGED.0), Bytes(bytes.len() as u64));
            self.memory.write(Bytes::ZERO, bytes)?;
            self.stream.copy_in((&self.memory, Bytes::ZERO), (to, at), size)?;
            self.stream.synchronize()?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, (from, at): (&Reservation, Bytes), bytes: &mut [u8]) -> Result<()> {
        for (part, bytes) in (0..).zip(bytes.chunks_mut(STAGED.as_usize())) {
            let (at, size) = (at + Bytes(part * STAGED.0), Bytes(bytes.len() as u64));
            self.stream.copy_out((from, at), (&self.memory, Bytes::ZERO), size)?;
            self.stream.synchronize()?;
            self.memory.read(Bytes::ZERO, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, at: (&Reservation, Bytes), byte: u8, size: Bytes) -> Result<()> {
        if size == Bytes::ZERO {
            return Ok(());
        }
        self.stream.fill(at, byte, size)?;
        self.stream.synchronize()
    }
}
