//! The list of live blocks: of which tag, how many, and where the program allocated them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lowtide_device::Bytes;

use crate::policy::GRAIN;
use crate::pool::Pool;
use crate::pool::places::Place;

/// Live blocks of one tag that were allocated at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlocks {
    /// The name of the tag.
    pub tag: Arc<str>,
    /// The place where they were allocated; `None` for blocks of [`Pool::alloc`].
    pub since: Option<Place>,
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
        let places = self.shared.places.by_address();
        let mut sums: BTreeMap<(u16, Option<Place>), (usize, u64)> = BTreeMap::new();
        for handle in state.live_handles() {
            let place = places.get(&handle.address).copied();
            let (blocks, bytes) = sums.entry((handle.tag, place)).or_default();
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
