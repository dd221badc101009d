//! The numbers that decide: one default policy for every workload.
//!
//! They are a trade (docs/decisions/0004-chunks.md has the figures): small chunks fit
//! anywhere and cost a driver call each; large ones move fast and stay where one byte of them is
//! live.

use lowtide_device::Bytes;
use lowtide_device::digest::PAGE_BYTES;

/// Every block begins at a multiple of this and takes a multiple of it: a cache line of the device. More would be
/// lost in tiny blocks.
pub(crate) const GRAIN: u64 = 128;

/// The size of a page of backups and digests.
pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

/// The size of a piece, the unit of a copy. Each copy leaves the link idle for some 2 µs, which is 1.5% of a
/// copy of 8 MiB; larger pieces want larger buffers, and what is in them should still be in the caches when
/// the other side reads it.
pub(crate) const PIECE: u64 = 8 << 20;

/// The grain of blocks that are not tiny: the alignment that CUDA promises for an allocation, on which libraries
/// rely for matrices.
const WIDE_GRAIN: u64 = 256;

/// The largest tiny block: many of them take little more than their bytes.
const TINY_MOST: Bytes = Bytes::kib(4);

/// The settings of a pool.
///
/// ```
/// # use lowtide_device::{Bytes, Device};
/// # use lowtide_pool::{Policy, Pool};
/// # let device = Device::dry_run(Bytes::gib(1)).0;
/// let policy = Policy::default().keep_backups(false).backup_most(Some(Bytes::gib(8)));
/// let pool = Pool::builder(&device).policy(policy).build()?;
/// # Ok::<(), lowtide_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not depend on one another")]
pub struct Policy {
    /// Keeps backups after a wake. The next sleep then copies only what changed, and the
    /// host memory stays taken. Default: yes.
    pub keep_backups: bool,
    /// The most host memory that backups may take. Default: none, which means what the machine and
    /// its control groups have left.
    pub backup_most: Option<Bytes>,
    /// The part of the backups that is registered with the device. Registered backups are copied without
    /// the processor's help and fill the gaps that copying the rest leaves on the link. They cost
    /// 2 MiB of device memory for each GiB while they exist, asleep too, and time to be made and
    /// given back: once with `keep_backups`, in every sleep and wake without. With zero, all backups
    /// are plain pages. Default: 2.5 GiB.
    pub direct_backups: Bytes,
    /// Computes the digest of every backup page on the host, too, before a sleep lets the device's memory
    /// go. A backup page that is wrong is copied again. The sleep then gives no memory back before the
    /// last copy has arrived, and a processor reads all backups once. Default: no.
    pub check_backups: bool,
    /// Gives each block of whole pages chunks of its own: as few of at most this size as possible, equal in
    /// size. A wake then makes chunks of the same sizes again. Default: none, and blocks share chunks.
    pub apart: Option<Bytes>,
    /// Packs pages of bf16 values on their way to the host: three quarters of the bytes cross the link and
    /// stay in host memory. Each page decides for itself; one that does not pack is copied as it is.
    /// The first sleep that packs, and then every 16th, unpacks the packed pages again on the device and
    /// compares digests before their memory goes; a page that differs is copied as it is. Default: yes.
    pub packing: bool,
    /// The most host memory up to which [`Pool::back_up_some`](crate::Pool::back_up_some) makes backups ahead
    /// of a sleep. What a sleep itself needs beyond that it takes as before. With zero, no backups are made
    /// ahead. Default: zero.
    pub ahead_most: Bytes,
    /// Makes an allocation in a tag that is asleep wake the tag, instead of being refused.
    /// Default: no.
    pub wake_on_alloc: bool,
    /// Numbers that no program needs to change.
    pub(crate) numbers: Numbers,
}

/// The numbers behind a policy, which trade speed for tightness. They are not settings: tests change them to
/// reach what takes many gibibytes otherwise.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    /// Blocks up to this size have arenas of their own, so that they do not pin the pages of large
    /// blocks.
    pub small_most: Bytes,
    /// A new chunk is at most the block's size divided by this number.
    pub chunks_per_block: u64,
    /// The same once the pool has taken half of the device, where small chunks fit and large ones do
    /// not.
    pub chunks_per_block_when_tight: u64,
    /// The largest chunk that is made for a block.
    pub chunk_most: Bytes,
    /// The largest chunk that is made for one block alone. It goes back to the device when another block would get
    /// a part of it; from then on new chunks of that tag are as small as the fields above say. Zero: all are.
    pub large_chunk_most: Bytes,
    /// The largest chunk that a wake makes. A wake knows all blocks at once, so large chunks cost
    /// nothing but tightness later on.
    pub wake_chunk_most: Bytes,
    /// The growth of device memory beyond the peak of live bytes, in thousandths, from which on small
    /// chunks are moved instead. Large chunks are always moved.
    pub slack_thousandths: u64,
    /// The same while the device has memory to spare: until then no chunk moves at all.
    pub spare_thousandths: u64,
    /// The part of the device's memory, in thousandths, that is kept free and is nobody's to spare: with less,
    /// chunks move as if memory were tight.
    pub kept_free_thousandths: u64,
    /// A free chunk of at least this part of what is missing counts as large: four is a quarter.
    pub cheap_part: u64,
    /// The most bytes that a sleep digests together for the second time, right before they leave. A GPU
    /// needs many pages to be busy. More bytes give a stray write more time between the digest and the
    /// end of the memory. One chunk is always digested whole.
    pub checked_at_once: Bytes,
    /// The number of sleeps of which one checks packed pages: the first, and then every n-th. With 0, none
    /// does.
    pub compare_each: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            keep_backups: true,
            backup_most: None,
            direct_backups: Bytes::mib(2560),
            check_backups: false,
            apart: None,
            packing: true,
            ahead_most: Bytes::ZERO,
            wake_on_alloc: false,
            numbers: Numbers {
                small_most: Bytes::kib(256),
                chunks_per_block: 4,
                chunks_per_block_when_tight: 32,
                chunk_most: Bytes::mib(64),
                large_chunk_most: Bytes::mib(256),
                wake_chunk_most: Bytes::mib(256),
                slack_thousandths: 60,
                spare_thousandths: 250,
                kept_free_thousandths: 50,
                cheap_part: 4,
                checked_at_once: Bytes::gib(2),
                compare_each: 16,
            },
        }
    }
}

/// A method for each field, because programs cannot write the struct out: it may grow.
macro_rules! setters {
    ($($field:ident: $kind:ty,)*) => {
        impl Policy {
            $(
                #[doc = concat!("Sets [`Policy::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub const fn $field(mut self, $field: $kind) -> Policy {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

setters! {
    keep_backups: bool,
    backup_most: Option<Bytes>,
    direct_backups: Bytes,
    check_backups: bool,
    apart: Option<Bytes>,
    packing: bool,
    ahead_most: Bytes,
    wake_on_alloc: bool,
}

impl Policy {
    /// Changes the numbers behind the policy, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn numbers(mut self, change: impl FnOnce(&mut Numbers)) -> Policy {
        change(&mut self.numbers);
        self
    }

    /// Returns the largest block that goes to an arena for small ones. Blocks that stand apart have none.
    pub(crate) fn small_most(&self) -> Bytes {
        if self.apart.is_some() { Bytes::ZERO } else { self.numbers.small_most }
    }

    /// Returns what the size and the address of a block are multiples of.
    pub(crate) fn alignment_of(size: Bytes) -> u64 {
        if size <= TINY_MOST { GRAIN } else { WIDE_GRAIN }
    }

    /// Returns the size of a new chunk for a block.
    pub(crate) fn chunk_for(&self, block: u64, page: u64, tight: bool) -> u64 {
        if let Some(most) = self.apart {
            return equal_part(block, most.0, page);
        }
        let Numbers { chunks_per_block, chunks_per_block_when_tight, chunk_most, .. } =
            self.numbers;
        let chunks = if tight { chunks_per_block_when_tight } else { chunks_per_block };
        let part = block / chunks.max(1);
        let rounded = if part == 0 { 0 } else { 1 << part.ilog2() };
        rounded.clamp(page, (chunk_most.0 / page).max(1) * page)
    }
}

/// Returns the size of the parts of a block: as few parts as possible, none larger than `most`, all whole
/// pages and as equal as that allows.
pub(crate) fn equal_part(block: u64, most: u64, page: u64) -> u64 {
    let most = (most / page).max(1) * page;
    let parts = block.div_ceil(most).max(1);
    block.div_ceil(parts).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_few_equal_and_whole_pages() {
        let part = |block| equal_part(block, 512, 2);
        assert_eq!([part(2), part(20), part(512)], [2, 20, 512], "one part");
        assert_eq!(part(514), 258, "two parts of nearly the same size");
        assert_eq!(part(1024), 512);
        assert_eq!(part(1026), 342, "three");
        assert_eq!(equal_part(6, 1, 2), 2, "a page at least");
    }
}
