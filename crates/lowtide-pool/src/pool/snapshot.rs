//! The pool's numbers as plain data, and its live blocks by the place where the program allocated them.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

use lowtide_device::Bytes;
use lowtide_types::{Phase, PoolSnapshot, TagSnapshot};

use crate::lock::lock;
use crate::policy::GRAIN;
use crate::pool::Pool;
use crate::state::arena::Arena;
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
        let tag = |(known, arenas): (&TagEntry, &[Arena])| {
            let physical: Bytes = arenas.iter().map(|arena| Bytes(arena.mapped())).sum();
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
        self.tags.known.iter().zip(self.arenas.by_tag()).map(tag).collect()
    }
}

/// Live blocks of one tag that were allocated at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlocks {
    /// The name of the tag.
    pub tag: Arc<str>,
    /// The place where they were allocated; `None` for blocks of [`Pool::alloc`].
    pub since: Option<&'static Location<'static>>,
    /// The number of blocks.
    pub blocks: usize,
    /// Their size together.
    pub bytes: Bytes,
}

impl Pool {
    /// Lists the live blocks by tag and by the place where they were allocated, the largest sum first.
    /// Empty where the pool refuses all work ([`Pool::health`]).
    ///
    /// ```
    /// # use lowtide_device::{Bytes, Device};
    /// # use lowtide_pool::Pool;
    /// # let pool = Pool::new(&Device::dry_run(Bytes::gib(1)).0)?;
    /// let kept = pool.block(Bytes::mib(20))?;
    /// let live = pool.live_blocks();
    /// assert_eq!((live[0].blocks, live[0].bytes), (1, Bytes::mib(20)));
    /// println!("held since {}", live[0].since.unwrap());
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    pub fn live_blocks(&self) -> Vec<LiveBlocks> {
        let Ok(state) = self.state() else { return Vec::new() };
        // The state's lock first, everywhere.
        let lines = lock(&self.shared.allocated_at);
        let mut sums: BTreeMap<(u16, Option<&'static Location<'static>>), (usize, u64)> =
            BTreeMap::new();
        for handle in state.live_handles() {
            let line = lines.get(&handle.address).copied();
            let (blocks, bytes) = sums.entry((handle.tag, line)).or_default();
            *blocks += 1;
            *bytes += u64::from(handle.grains) * GRAIN;
        }
        let tag = |number: u16| Arc::clone(&state.tags.known[usize::from(number)].name);
        let mut live: Vec<LiveBlocks> = sums
            .into_iter()
            .map(|((number, since), (blocks, bytes))| LiveBlocks {
                tag: tag(number),
                since,
                blocks,
                bytes: Bytes(bytes),
            })
            .collect();
        live.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        live
    }
}
