//! What the last full collection left, by which a later release decides whether another one is due.

use std::time::Duration;

use lowtide_types::{Bytes, Reading, Receipt, RungName, RungOutcome};

use super::request::Request;
use crate::readings::{Activity, Inventory};

/// The share of time that full collections may take.
const LARGEST_SHARE: f64 = 0.02;

/// What the last full collection left.
#[derive(Debug, Clone)]
pub(crate) struct Collected {
    ended: Duration,
    took_s: f64,
    /// The least that was allocated since.
    allocated: Bytes,
    activity: Option<Activity>,
}

impl Collected {
    /// Returns what a climb left, if it ran a full collection to its end.
    pub(crate) fn by(
        request: &Request,
        receipt: &Receipt,
        inventory: &Inventory,
        now: Duration,
    ) -> Option<Collected> {
        let last = receipt.rungs.iter().rfind(|rung| rung.rung == RungName::Collect)?;
        let is_whole = last.outcome == RungOutcome::Done && receipt.stopped_at.is_none();
        (is_whole && request.ladder.collects_all()).then(|| Collected {
            ended: now,
            took_s: last.took_s,
            allocated: receipt.after.allocated,
            activity: inventory.activity(),
        })
    }

    /// Returns the same collection, after a release that left so much allocated.
    pub(crate) fn followed_by(self, after: &Reading, inventory: &Inventory) -> Collected {
        let allocated = self.allocated.min(after.allocated);
        Collected { allocated, activity: inventory.activity(), ..self }
    }

    /// Returns whether nothing was allocated or freed since, as far as the allocators can tell.
    pub(crate) fn is_the_last_act(&self, inventory: &Inventory) -> bool {
        self.activity.is_some() && inventory.activity() == self.activity
    }

    /// Returns whether another full collection would be too large a share of the time.
    pub(crate) fn is_recent(&self, now: Duration) -> bool {
        now.saturating_sub(self.ended).as_secs_f64() < self.took_s / LARGEST_SHARE
    }

    /// Returns whether more is allocated than the collection left: some of it may be garbage.
    pub(crate) fn has_grown(&self, now: &Reading, noise: Bytes) -> bool {
        now.allocated > self.allocated + noise
    }
}
