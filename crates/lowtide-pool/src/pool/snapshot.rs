//! A snapshot: the pool's numbers as plain data.

use lowtide_device::Bytes;
use lowtide_types::{Phase, PoolSnapshot, TagSnapshot};

use crate::pool::Pool;
use crate::state::room::Room;
use crate::state::tags::TagEntry;
use crate::state::{PoolCounts, State};

impl Pool {
    /// Returns the pool's numbers at this moment, by tag. Those of a broken pool may be wrong
    /// ([`Pool::health`] tells); in a forked child there are none.
    pub fn snapshot(&self) -> PoolSnapshot {
        let device = self.shared.device.info().id;
        let (counts, tags) = match self.shared.monitor.lock_as_it_is() {
            Some(state) => (state.counts(), state.tag_snapshots()),
            None => (PoolCounts::default(), Vec::new()),
        };
        PoolSnapshot {
            device,
            live_bytes: counts.live,
            live_peak_bytes: counts.live_peak,
            asleep_bytes: counts.asleep,
            cached_bytes: tags.iter().map(|tag| tag.cached_bytes).sum(),
            physical_bytes: counts.physical,
            physical_peak_bytes: counts.physical_peak,
            backup_bytes: counts.backup,
            host_bytes: counts.host,
            blocks: counts.blocks,
            tags,
        }
    }
}

impl State {
    pub(crate) fn tag_snapshots(&self) -> Vec<TagSnapshot> {
        let tag = |(known, rooms): (&TagEntry, &[Room])| {
            let physical: Bytes = rooms.iter().map(|room| Bytes(room.arena.mapped())).sum();
            let asleep = if known.phase() == Phase::Asleep { known.live } else { Bytes::ZERO };
            TagSnapshot {
                name: known.name.to_string(),
                policy: known.policy,
                phase: known.phase(),
                live_bytes: known.live,
                live_peak_bytes: known.peak,
                asleep_bytes: asleep,
                cached_bytes: physical.saturating_sub(known.live - asleep),
                physical_bytes: physical,
                backup_bytes: known.backup,
                blocks: known.blocks,
            }
        };
        self.tags.known.iter().zip(self.rooms.by_tag()).map(tag).collect()
    }
}
