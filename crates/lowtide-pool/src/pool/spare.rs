//! Spare memory: what the device has free and an allocation may take, so that no chunk has to move.
//!
//! Where memory is tight, moving chunks is right: it takes nothing from anybody. Where the device has memory to
//! spare, growth costs driver calls once. After that, cached blocks of more sizes are there, and a request for
//! another size seldom calls the driver at all. A trim, a sleep, a wake and any allocation that finds the device
//! full get the memory back (docs/decisions/0004-chunks.md).

/// The number of allocations, of those that would move chunks, for which an answer of the device is used.
const USES: u32 = 16;

/// What may be taken, as the device said not long ago.
#[derive(Default)]
pub(crate) struct Spare {
    left: u64,
    uses: u32,
}

impl Spare {
    /// Returns what the device has just said may be taken.
    pub(crate) fn answered(left: u64) -> Spare {
        Spare { left, uses: USES }
    }

    /// Returns whether the device has to be asked again.
    pub(crate) fn is_old(&self) -> bool {
        self.uses == 0
    }

    /// Takes memory; `false` where there is not so much.
    pub(crate) fn take(&mut self, size: u64) -> bool {
        self.uses = self.uses.saturating_sub(1);
        let is_there = self.left >= size;
        if is_there {
            self.left -= size;
        }
        is_there
    }
}
