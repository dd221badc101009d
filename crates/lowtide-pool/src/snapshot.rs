//! A snapshot: the pool's numbers as plain data.

use lowtide_device::Bytes;
use lowtide_types::{Phase, PoolSnapshot, TagSnapshot};

use crate::pool::Pool;
use crate::room::Room;
use crate::tags::TagEntry;

impl Pool {
    /// Returns the pool's numbers at this moment, by tag.
    pub fn snapshot(&self) -> PoolSnapshot {
        let state = self.state();
        let counts = state.counts();
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
        let tags: Vec<TagSnapshot> =
            state.tags.known.iter().zip(state.rooms.by_tag()).map(tag).collect();
        PoolSnapshot {
            device: self.shared.device.info().id,
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
