//! Allocators: code that takes memory from a device and hands it out in blocks. The pool is one; a
//! framework's caching allocator, registered by a host language, is another.

use lowtide_pool::{Phase, Pool};
use lowtide_types::{Bytes, LedgerKind, LedgerLine};

use crate::failure::Failure;

/// Lines for places of allocation that each tag has in the ledger.
const MOST_PLACES: usize = 4;

/// The memory that an allocator has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorCounts {
    /// Memory in live blocks that is on the device.
    pub allocated: Bytes,
    /// Memory that the allocator took from the device.
    pub reserved: Bytes,
}

/// Code that takes memory from a device and hands it out in blocks.
pub trait Allocator: Send + Sync {
    /// Returns the name of the allocator, for receipts.
    fn name(&self) -> String;

    /// Returns how much memory the allocator has.
    fn counts(&self) -> AllocatorCounts;

    /// Says that the counts may have changed. Only an allocator for which counting takes long remembers
    /// them until then.
    fn recount(&self) {}

    /// Returns the allocator's lines of the ledger. They add up to `reserved`.
    fn lines(&self) -> Vec<LedgerLine>;

    /// Returns how much of the memory a trim can return to the driver now. Memory that shares a segment
    /// with a live block stays.
    fn trimmable(&self) -> Bytes {
        let counts = self.counts();
        counts.reserved.saturating_sub(counts.allocated)
    }

    /// Returns two numbers that change whenever the allocator hands out or takes back a block: how often
    /// it has done each so far. `None` if it does not count.
    fn activity(&self) -> Option<(u64, u64)> {
        None
    }

    /// Returns why a trim would have no effect now; `None` if it may have one.
    fn why_not_trim(&self) -> Option<String> {
        None
    }

    /// Returns cached memory to the driver. Returns how much that was by the allocator's own account.
    ///
    /// # Errors
    /// Whatever the device refused.
    fn trim(&self) -> Result<Bytes, Failure>;
}

impl Allocator for Pool {
    fn name(&self) -> String {
        "pool".to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        let counts = Pool::counts(self);
        let allocated = counts.live.saturating_sub(counts.asleep);
        AllocatorCounts { allocated, reserved: counts.physical }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        let (mut lines, live_blocks) = (Vec::new(), self.live_blocks());
        for tag in self.snapshot().tags {
            let mut live = tag.physical_bytes.saturating_sub(tag.cached_bytes);
            let phase = if tag.phase == Phase::Asleep { ", asleep" } else { "" };
            let line = |kind, since: &str, bytes| LedgerLine {
                kind,
                name: format!("{}{phase}{since}", tag.name),
                bytes,
            };
            let placed = live_blocks.iter().filter(|blocks| *blocks.tag == *tag.name);
            let placed = placed.filter_map(|blocks| Some((blocks.since?, blocks.bytes)));
            for (place, bytes) in placed.take(MOST_PLACES) {
                // A tag that is asleep, or in part, has less on the device than its blocks.
                let Some(rest) = live.0.checked_sub(bytes.0) else { break };
                live = Bytes(rest);
                let since = format!(", since {}:{}", place.file(), place.line());
                lines.push(line(LedgerKind::Live, &since, bytes));
            }
            lines.push(line(LedgerKind::Live, "", live));
            lines.push(line(LedgerKind::Cached, "", tag.cached_bytes));
        }
        lines.retain(|line| line.bytes > Bytes::ZERO);
        lines
    }

    fn trimmable(&self) -> Bytes {
        Pool::trimmable(self)
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        Ok(Pool::trim(self, Bytes::ZERO)?)
    }
}
