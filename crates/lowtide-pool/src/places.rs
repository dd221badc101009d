//! Where live blocks were allocated, so that a block that nobody frees can be found.
//!
//! Only blocks that free themselves ([`Block`](crate::Block)) are recorded: it costs one entry in a
//! hash table when such a block is made and when it goes. `Pool::alloc` and `Pool::free` record nothing.

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::Arc;

use lowtide_device::{Address, Bytes};

use crate::policy::GRAIN;
use crate::pool::Pool;
use crate::sync::{Mutex, MutexGuard};

/// A place in a program's source.
pub type Place = &'static Location<'static>;

/// The places of live blocks, by address.
#[derive(Default)]
pub(crate) struct Places {
    by_address: Mutex<HashMap<u64, Place>>,
}

impl Places {
    pub(crate) fn add(&self, address: Address, place: Place) {
        self.by_address().insert(address.0, place);
    }

    /// Forgets a block. Called before it is freed: afterwards its address may be another block's.
    pub(crate) fn remove(&self, address: Address) {
        self.by_address().remove(&address.0);
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<u64, Place>> {
        // An entry is added or removed in one step, so a panic leaves nothing half-done.
        self.by_address.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

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
