//! A snapshot: what a pool holds, as plain data.

use lowtide_device::{Bytes, DeviceId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Pool;
use crate::books::ROOMS;
use crate::tags::{Phase, SleepPolicy};

/// What a pool holds at one moment. Its JSON schema is `docs/schemas/pool-snapshot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// The device.
    pub device: DeviceId,
    /// In blocks that callers have, asleep or not.
    pub live_bytes: Bytes,
    /// The most of it there ever was.
    pub live_peak_bytes: Bytes,
    /// Of the live bytes: what has no memory on the device now.
    pub asleep_bytes: Bytes,
    /// Taken from the device and in no caller's block.
    pub cached_bytes: Bytes,
    /// Taken from the device.
    pub physical_bytes: Bytes,
    /// The most of it there ever was.
    pub physical_peak_bytes: Bytes,
    /// Backups of blocks, in the host's memory.
    pub backup_bytes: Bytes,
    /// Taken from the host for backups.
    pub host_bytes: Bytes,
    /// Blocks that callers have.
    pub blocks: u64,
    /// By tag, in the order in which they were made.
    pub tags: Vec<TagSnapshot>,
}

/// What the blocks of one tag hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TagSnapshot {
    /// Its name.
    pub name: String,
    /// What becomes of it in a sleep.
    pub policy: SleepPolicy,
    /// Whether its memory is on the device.
    pub phase: Phase,
    /// In blocks that callers have, asleep or not.
    pub live_bytes: Bytes,
    /// The most of it there ever was.
    pub live_peak_bytes: Bytes,
    /// Of the live bytes: what has no memory on the device now.
    pub asleep_bytes: Bytes,
    /// Taken from the device and in no caller's block.
    pub cached_bytes: Bytes,
    /// Taken from the device.
    pub physical_bytes: Bytes,
    /// Backups of its blocks, in the host's memory.
    pub backup_bytes: Bytes,
    /// Blocks that callers have.
    pub blocks: u64,
}

impl Pool {
    /// What the pool holds right now.
    pub fn snapshot(&self) -> Snapshot {
        let books = self.books();
        let counts = books.counts;
        let tag = |(index, known): (usize, &crate::tags::Known)| {
            let rooms = &books.rooms[index * ROOMS..(index + 1) * ROOMS];
            let physical: Bytes = rooms.iter().map(|room| Bytes(room.arena.mapped())).sum();
            let asleep = if known.phase == Phase::Asleep { known.live } else { Bytes::ZERO };
            TagSnapshot {
                name: known.name.to_string(),
                policy: known.policy,
                phase: known.phase,
                live_bytes: known.live,
                live_peak_bytes: known.peak,
                asleep_bytes: asleep,
                cached_bytes: physical.saturating_sub(known.live - asleep),
                physical_bytes: physical,
                backup_bytes: known.backup,
                blocks: known.blocks,
            }
        };
        let tags: Vec<TagSnapshot> = books.tags.known.iter().enumerate().map(tag).collect();
        Snapshot {
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
