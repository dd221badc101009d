//! Where backups are: memory that the device knows, or plain pages.
//!
//! What the device knows is copied without the processor's help, at the speed of the link, but costs
//! the device page tables for as long as it is known. Plain pages cost it nothing; threads copy
//! between them and a few slots that it knows.

use std::sync::Arc;

use lowtide_device::headroom::HostGrant;
use lowtide_device::{Bytes, Device, HostMemory, HostPages, Result};

/// Memory of the host, for backups.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    /// Registered with the device.
    Direct(Arc<HostMemory>),
    /// Pages that no device knows.
    Plain(Arc<HostPages>),
}

impl Memory {
    /// Takes registered memory, with every page present at once.
    pub(crate) fn direct(device: &Device, size: Bytes, grant: &mut HostGrant) -> Result<Memory> {
        device.host_memory_from(grant, size).map(Memory::Direct)
    }

    /// Takes plain pages, as many as were granted; each becomes real when it is first written.
    pub(crate) fn plain(grant: HostGrant) -> Result<Memory> {
        Ok(Memory::Plain(Arc::new(HostPages::granted(grant)?)))
    }

    /// Gives up a page that was never written. Returns whether it was one.
    pub(crate) fn give_up(&self, at: Bytes) -> bool {
        match self {
            Memory::Direct(_) => false,
            Memory::Plain(pages) => pages.give_up(at),
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, Memory::Direct(_))
    }

    /// Copies bytes out of it.
    pub(crate) fn read(&self, at: Bytes, into: &mut [u8]) -> Result<()> {
        match self {
            Memory::Direct(memory) => memory.read(at, into),
            Memory::Plain(pages) => {
                let size = Bytes(into.len() as u64);
                pages.read(at, size, |bytes| into.copy_from_slice(bytes))
            }
        }
    }

    // Carriers know which kind they have; tests write to both.
    #[cfg(test)]
    pub(crate) fn write(&self, at: Bytes, from: &[u8]) -> Result<()> {
        match self {
            Memory::Direct(memory) => memory.write(at, from),
            Memory::Plain(pages) => {
                let size = Bytes(from.len() as u64);
                pages.write(at, size, |bytes| bytes.copy_from_slice(from))
            }
        }
    }
}
