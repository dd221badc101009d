//! Slabs: host memory for backups, cut into slots of one size.

use std::sync::Arc;

use lowtide_device::headroom::HostGrant;
use lowtide_device::{Bytes, Device, HostMemory, HostPages, Result as DeviceResult};

use crate::Result;
use crate::copy::packing::Form;
use crate::policy::PAGE;

/// The most memory of a slab.
const SLAB_BYTES: u64 = 256 * PAGE;

impl Form {
    /// Returns how many slots fit whole pages of so much memory.
    pub(crate) fn fit(self, memory: Bytes) -> u64 {
        memory.0 / PAGE * PAGE / self.bytes()
    }

    /// Returns the size of a slab for so many slots, or of the largest.
    pub(crate) fn slab_for(self, slots: u64) -> Bytes {
        Bytes(slots.saturating_mul(self.bytes()).min(SLAB_BYTES).next_multiple_of(PAGE))
    }
}

/// Host memory for backups.
pub(crate) struct Slab {
    pub(crate) memory: Memory,
    pub(crate) form: Form,
    /// The number of slots that are used or free.
    pub(crate) slots: u32,
    /// The memory, without pages that were given up.
    pub(crate) held: Bytes,
    /// Set where a page was given up.
    has_holes: bool,
}

impl Slab {
    fn new(memory: Memory, form: Form, held: Bytes) -> Slab {
        Slab { memory, form, slots: form.fit(held) as u32, held, has_holes: false }
    }

    /// Makes a slab of this size that the device knows; none where it refuses, since plain pages serve
    /// as well.
    pub(crate) fn direct(
        device: &Device,
        form: Form,
        size: Bytes,
        grant: &mut HostGrant,
    ) -> Result<Option<Slab>> {
        match Memory::direct(device, size, grant) {
            Ok(memory) => Ok(Some(Slab::new(memory, form, size))),
            Err(error @ lowtide_device::Error::NoHostHeadroom { .. }) => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "backups could not be registered; they are plain pages instead");
                Ok(None)
            }
        }
    }

    /// Makes a slab of plain pages of this size.
    pub(crate) fn plain(form: Form, size: Bytes, grant: &mut HostGrant) -> Result<Slab> {
        Ok(Slab::new(Memory::plain(grant.split(size))?, form, size))
    }

    /// Returns whether the slab can have a form, as soon as nothing uses it.
    pub(crate) fn can_become(&self, form: Form) -> bool {
        self.form != form && !self.has_holes && self.slots_as(form) > 0
    }

    /// Returns how many slots it has in a form.
    pub(crate) fn slots_as(&self, form: Form) -> u64 {
        form.fit(self.held)
    }

    /// Takes on another form. Nothing may use it.
    pub(crate) fn become_form(&mut self, form: Form) {
        self.slots = self.slots_as(form) as u32;
        self.form = form;
    }

    /// Gives up a raw slot that was never written. Returns whether it was one: it is no slot any more.
    pub(crate) fn give_up(&mut self, at: Bytes) -> bool {
        let is_given_up = self.form == Form::Raw && self.memory.give_up(at);
        if is_given_up {
            self.slots -= 1;
            self.held = self.held - Bytes(PAGE);
            self.has_holes = true;
        }
        is_given_up
    }
}

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
    pub(crate) fn direct(
        device: &Device,
        size: Bytes,
        grant: &mut HostGrant,
    ) -> DeviceResult<Memory> {
        device.host_memory_from(grant, size).map(Memory::Direct)
    }

    /// Takes plain pages, as many as were granted; each becomes real when it is first written.
    pub(crate) fn plain(grant: HostGrant) -> DeviceResult<Memory> {
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
    pub(crate) fn read(&self, at: Bytes, into: &mut [u8]) -> DeviceResult<()> {
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
    pub(crate) fn write(&self, at: Bytes, from: &[u8]) -> DeviceResult<()> {
        match self {
            Memory::Direct(memory) => memory.write(at, from),
            Memory::Plain(pages) => {
                let size = Bytes(from.len() as u64);
                pages.write(at, size, |bytes| bytes.copy_from_slice(from))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_slots_take_three_quarters() {
        assert_eq!(Form::Packed.fit(Bytes(SLAB_BYTES)), 338);
        assert_eq!(Form::Packed.slab_for(1), Bytes(PAGE));
        assert_eq!(Form::Packed.slab_for(4), Bytes(4 * PAGE), "5 fit");
        assert_eq!(Form::Packed.slab_for(338), Bytes(256 * PAGE));
        assert_eq!(Form::Packed.slab_for(u64::MAX), Bytes(256 * PAGE));
        assert_eq!(Form::Raw.slab_for(3), Bytes(3 * PAGE));
        for slots in [1, 2, 5, 100, 337, 338] {
            assert!(Form::Packed.fit(Form::Packed.slab_for(slots)) >= slots);
        }
    }
}
