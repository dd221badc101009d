//! Chunks: memory of a device, with one owner.
#![allow(unsafe_code, reason = "calls the back end, whose preconditions are kept here")]

use std::sync::Arc;

use lowtide_types::debug_as;

use crate::backend::Handle;
use crate::safe::shared::Shared;
use crate::{Bytes, Result};

/// Memory of a device that is mapped nowhere. Dropping it gives the memory back.
pub struct Chunk {
    pub(crate) device: Arc<Shared>,
    pub(crate) handle: Handle,
    size: Bytes,
    /// False once somebody else has to give the memory back.
    owned: bool,
}

impl Chunk {
    pub(crate) fn new(device: &Arc<Shared>, size: Bytes) -> Result<Chunk> {
        let handle = device.backend.create(size)?;
        Ok(Chunk { device: Arc::clone(device), handle, size, owned: true })
    }

    /// Returns the size, a multiple of the device's page.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Turns the chunk into its bare handle, which the caller has to destroy and which does not keep
    /// the device alive.
    pub(crate) fn disown(mut self) -> (Handle, Bytes) {
        self.owned = false;
        (self.handle, self.size)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (handle, size) = (self.handle, self.size);
        self.device.give_back("chunk", move |backend| {
            // SAFETY: this `Chunk` owned the handle, and no reservation has it: it would own the `Chunk`.
            unsafe { backend.destroy(handle, size) }
        });
    }
}

debug_as!(Chunk, |it| "Chunk({} on {})", it.size, it.device.id());
