//! The numbers that decide: one default policy for every workload.
//!
//! They are a trade (docs/decisions/0004-chunk-sizes.md has the figures): small chunks fit
//! anywhere and cost a driver call each; large ones move fast and stay where one byte of them is
//! live.

use lowtide_device::Bytes;

/// Every block is a multiple of this.
pub(crate) const GRAIN: u64 = 512;

/// How the pool trades speed for tightness, and what it does with backups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Blocks up to this size live apart, so that they do not pin the pages of large ones.
    pub small_most: Bytes,
    /// A chunk is at most this part of the block it is made for.
    pub chunks_per_block: u64,
    /// The same once the pool has taken half of the device: small chunks fit where large ones do not.
    pub chunks_per_block_when_tight: u64,
    /// No chunk made for a block is larger.
    pub chunk_most: Bytes,
    /// No chunk made by a wake is larger. It knows all blocks at once, so that large chunks cost
    /// nothing but tightness later on.
    pub wake_chunk_most: Bytes,
    /// How far memory may grow beyond the most that was ever live, in thousandths, before small
    /// chunks are moved instead; large ones always are.
    pub slack_thousandths: u64,
    /// A free chunk of at least this part of what is missing counts as large.
    pub cheap_part: u64,
    /// Whether backups stay after a wake. The next sleep then copies only what changed, and the
    /// host's memory stays taken.
    pub keep_backups: bool,
    /// The most host memory that backups may take; what the machine and its control groups have
    /// left, where not given.
    pub backup_most: Option<Bytes>,
    /// How much of the backups is registered with the device, the first part of them. It is copied
    /// without the processor's help and fills the gaps that the copying of the rest leaves on the
    /// link. It costs the device 2 MiB a GiB for as long as it is there, asleep too, and takes time
    /// to be made and to be given back: with `keep_backups` once, without it in every sleep and wake.
    /// With zero all backups are plain pages; with more than there are of them, all are registered.
    pub direct_backups: Bytes,
    /// Whether an allocation wakes a tag that is asleep, instead of being refused.
    pub wake_on_alloc: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            small_most: Bytes::kib(256),
            chunks_per_block: 4,
            chunks_per_block_when_tight: 32,
            chunk_most: Bytes::mib(64),
            wake_chunk_most: Bytes::mib(256),
            slack_thousandths: 60,
            cheap_part: 4,
            keep_backups: true,
            backup_most: None,
            direct_backups: Bytes::mib(2560),
            wake_on_alloc: false,
        }
    }
}

impl Policy {
    /// The size of a new chunk for a block.
    pub(crate) fn chunk_for(&self, block: u64, page: u64, tight: bool) -> u64 {
        let chunks = if tight { self.chunks_per_block_when_tight } else { self.chunks_per_block };
        let part = block / chunks.max(1);
        let rounded = if part == 0 { 0 } else { 1 << part.ilog2() };
        rounded.clamp(page, (self.chunk_most.0 / page).max(1) * page)
    }
}
