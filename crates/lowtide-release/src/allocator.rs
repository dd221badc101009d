//! Allocators: whoever takes memory from a device and hands it out. The pool is one; a framework's
//! caching allocator, told by a host language, is another.

use lowtide_device::Bytes;
use lowtide_pool::{Phase, Pool};
use lowtide_types::{LedgerKind, LedgerLine};

use crate::rung::Failure;

/// What an allocator holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In blocks that callers have, on the device.
    pub allocated: Bytes,
    /// Taken from the device.
    pub reserved: Bytes,
}

/// Something that takes memory from the device and hands it out.
pub trait Allocator: Send + Sync {
    /// What people call it.
    fn name(&self) -> String;

    /// What it holds.
    fn counts(&self) -> Counts;

    /// Where it is, for the ledger: the lines add up to `reserved`.
    fn lines(&self) -> Vec<LedgerLine>;

    /// Why trimming would do nothing now, where that is so.
    fn why_not_trim(&self) -> Option<String> {
        None
    }

    /// Gives what is cached back to the driver; says how much it thinks that was.
    ///
    /// # Errors
    /// What the device refused.
    fn trim(&self) -> Result<Bytes, Failure>;
}

impl Allocator for Pool {
    fn name(&self) -> String {
        "pool".to_owned()
    }

    fn counts(&self) -> Counts {
        let counts = Pool::counts(self);
        Counts { allocated: counts.live.saturating_sub(counts.asleep), reserved: counts.physical }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        let mut lines = Vec::new();
        for tag in self.snapshot().tags {
            let live = tag.physical_bytes.saturating_sub(tag.cached_bytes);
            let phase = if tag.phase == Phase::Asleep { ", asleep" } else { "" };
            let line =
                |kind, bytes| LedgerLine { kind, name: format!("{}{phase}", tag.name), bytes };
            lines.push(line(LedgerKind::Live, live));
            lines.push(line(LedgerKind::Cached, tag.cached_bytes));
        }
        lines.retain(|line| line.bytes > Bytes::ZERO);
        lines
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        Ok(Pool::trim(self, Bytes::ZERO)?)
    }
}
