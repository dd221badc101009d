//! Spare memory: what the device has free and an allocation may take, so that no chunk has to move.
//!
//! Where memory is tight, moving chunks is right: it takes nothing from anybody. Where the device has memory to
//! spare, growth costs driver calls once. After that, cached blocks of more sizes are there, and a request for
//! another size seldom calls the driver at all. A trim, a sleep, a wake and any allocation that finds the device
//! full get the memory back (docs/decisions/0020-slack.md).

use lowtide_device::Bytes;

use crate::Result;
use crate::pool::Pool;
use crate::state::BlockRequest;

/// The number of allocations, of those that would move chunks, for which an answer of the device is used.
const USES: u32 = 16;

/// What may be taken, as the device said not long ago.
#[derive(Default)]
pub(crate) struct Spare {
    left: u64,
    uses: u32,
}

impl Spare {
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

impl Pool {
    /// Asks the device how much it has to spare, unless an answer is there or the request needs none.
    pub(crate) fn ask_for_spare(&self, request: &BlockRequest) -> Result<()> {
        let (policy, device) = (&self.shared.policy, &self.shared.device);
        let state = self.state()?;
        let is_due =
            state.spare.uses == 0 && state.unwanted_growth(request.size(), request.size()) > 0;
        drop(state);
        if !is_due {
            return Ok(());
        }
        let kept = (device.info().total.0 / 1000).saturating_mul(policy.kept_free_thousandths);
        let left = match device.usage() {
            Ok(usage) => usage.free.saturating_sub(Bytes(kept)).0,
            Err(error) => {
                tracing::debug!(%error, "the device does not say what is free: chunks move");
                0
            }
        };
        self.state()?.spare = Spare { left, uses: USES };
        Ok(())
    }
}
