//! The pool: blocks for callers, chunks from the device, one lock between.
//!
//! A hit takes the lock, finds a cached block and touches no driver. A miss is in `miss.rs`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::{Address, Bytes, Device};

use crate::arena::Arena;
use crate::blocks::SETTLED;
use crate::policy::{GRAIN, Policy};
use crate::{Error, Fence, Result, StreamId, Tag};

const SMALL: usize = 0;
const LARGE: usize = 1;
const ARENAS: usize = 2;
/// Address space for each arena, in multiples of the device: holes cost nothing.
const SPACE_FACTOR: u64 = 16;

/// Blocks over a device's memory.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// use lowtide_pool::{Policy, Pool, StreamId, Tag};
/// # fn main() -> lowtide_pool::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let pool = Pool::new(&device, Policy::default(), None)?;
/// let block = pool.alloc(Bytes::mib(5), StreamId(0), Tag(0))?;
/// assert_eq!(pool.counts().physical, device.usage()?.in_use());
/// pool.free(block, StreamId(0))?;
/// pool.trim(Bytes::ZERO)?;
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
pub struct Pool {
    pub(crate) device: Device,
    pub(crate) policy: Policy,
    pub(crate) fence: Option<Arc<dyn Fence>>,
    books: Mutex<Books>,
}

pub(crate) struct Books {
    pub(crate) arenas: [Arena; ARENAS],
    pub(crate) counts: Counts,
    /// Live blocks by address.
    live: HashMap<u64, Place, BuildHasherDefault<AddressHasher>>,
    /// By index, from one: zero stands for no stream.
    streams: Vec<Stream>,
    /// By the tag's number.
    tags: Vec<TagCounts>,
}

struct Stream {
    id: StreamId,
    /// How often something was freed on it.
    frees: u64,
}

#[derive(Clone, Copy)]
struct Place {
    arena: u8,
    block: u32,
}

/// What a pool holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In blocks that callers have.
    pub live: Bytes,
    /// The most of it there ever was.
    pub live_peak: Bytes,
    /// Memory taken from the device.
    pub physical: Bytes,
    /// The most of it there ever was.
    pub physical_peak: Bytes,
    /// Blocks that callers have.
    pub blocks: u64,
}

impl Counts {
    /// Memory taken from the device that no caller has.
    pub fn cached(&self) -> Bytes {
        self.physical - self.live
    }
}

/// What the blocks of one tag hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagCounts {
    /// In blocks that callers have.
    pub live: Bytes,
    /// The most of it there ever was.
    pub peak: Bytes,
}

// Addresses are multiples of 512 and spread by multiplication; a stronger hash is only slower.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("addresses are hashed as whole numbers");
    }

    fn write_u64(&mut self, address: u64) {
        let mixed = (address / GRAIN).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Pool {
    /// A pool over a device. Without a fence, a free means that nothing uses the block any more.
    ///
    /// # Errors
    /// If the device has no addresses to give.
    pub fn new(device: &Device, policy: Policy, fence: Option<Arc<dyn Fence>>) -> Result<Pool> {
        let info = device.info();
        let space = Bytes(info.total.0.saturating_mul(SPACE_FACTOR) / info.page.0 * info.page.0);
        let arena = || -> Result<Arena> { Ok(Arena::new(device.reserve(space)?, info.page.0)) };
        let books = Books {
            arenas: [arena()?, arena()?],
            counts: Counts::default(),
            live: HashMap::default(),
            streams: Vec::new(),
            tags: Vec::new(),
        };
        Ok(Pool { device: device.clone(), policy, fence, books: Mutex::new(books) })
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the pool holds.
    pub fn counts(&self) -> Counts {
        self.books().counts
    }

    /// What the blocks of a tag hold.
    pub fn tag_counts(&self, tag: Tag) -> TagCounts {
        self.books().tags.get(usize::from(tag.0)).copied().unwrap_or_default()
    }

    /// A block of at least this size. Its address stays until it is freed.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is out of memory even after every free chunk was moved.
    pub fn alloc(&self, size: Bytes, stream: StreamId, tag: Tag) -> Result<Address> {
        let Some(size) = size.0.max(1).checked_next_multiple_of(GRAIN) else {
            return Err(Error::NoAddresses { size });
        };
        let arena = if size <= self.policy.small_most.0 { SMALL } else { LARGE };
        let mut books = self.books();
        let stream = books.index_of(stream);
        if let Some(address) = books.take(arena, size, stream, tag) {
            return Ok(address);
        }
        drop(books);
        self.miss(arena, size, stream, tag)
    }

    /// Frees a block. Work that was given to `stream` before may still use it; other streams are
    /// not given it until the fence says that the stream has passed.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`] where no live block begins at this address.
    pub fn free(&self, address: Address, stream: StreamId) -> Result<()> {
        let mut books = self.books();
        let Some(place) = books.live.remove(&address.0) else {
            return Err(Error::UnknownBlock { address });
        };
        let (owner, frees) = match self.fence {
            None => (SETTLED, 0),
            Some(_) => books.count_free(stream),
        };
        books.give_back(place, owner, frees);
        Ok(())
    }

    /// Gives cached memory back to the device, down to `keep`; says how much that was. Whole
    /// chunks only: where a byte of one is live, it stays.
    ///
    /// # Errors
    /// What the device refused; what was given back until then stays given back.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.settle_streams(false)?;
        self.give_free_chunks_back(keep)
    }

    /// What must always hold.
    ///
    /// # Panics
    /// Where it does not.
    pub fn check(&self) {
        let books = self.books();
        for arena in &books.arenas {
            arena.check();
        }
        let mapped: Bytes = books.arenas.iter().map(|arena| arena.reservation.mapped()).sum();
        assert_eq!(mapped, books.counts.physical, "every chunk is mapped");
        assert_eq!(books.live.len() as u64, books.counts.blocks);
        let tagged: Bytes = books.tags.iter().map(|counts| counts.live).sum();
        assert_eq!(tagged, books.counts.live, "every live byte has a tag");
        let live =
            |place: &Place| books.arenas[place.arena as usize].blocks().get(place.block).size;
        let sum: u64 = books.live.values().map(live).sum();
        assert_eq!(sum, books.counts.live.0, "every live byte has a block");
    }
}

impl Books {
    fn index_of(&mut self, id: StreamId) -> u32 {
        let known = self.streams.iter().position(|stream| stream.id == id);
        let index = known.unwrap_or_else(|| {
            self.streams.push(Stream { id, frees: 0 });
            self.streams.len() - 1
        });
        index as u32 + 1
    }

    fn count_free(&mut self, stream: StreamId) -> (u32, u64) {
        let index = self.index_of(stream);
        let stream = &mut self.streams[index as usize - 1];
        stream.frees += 1;
        (index, stream.frees)
    }

    /// Every stream with how often something was freed on it.
    pub(crate) fn streams(&self) -> Vec<(u32, StreamId, u64)> {
        let numbered = self.streams.iter().zip(1..);
        numbered.map(|(stream, index)| (index, stream.id, stream.frees)).collect()
    }

    pub(crate) fn take(
        &mut self,
        arena: usize,
        size: u64,
        stream: u32,
        tag: Tag,
    ) -> Option<Address> {
        let block = self.arenas[arena].take(size, stream, tag.0)?;
        Some(self.hand_out(arena, block, size, tag))
    }

    pub(crate) fn hand_out(&mut self, arena: usize, block: u32, size: u64, tag: Tag) -> Address {
        let address = self.arenas[arena].address_of(block);
        self.live.insert(address, Place { arena: arena as u8, block });
        let counts = &mut self.counts;
        counts.live += Bytes(size);
        counts.live_peak = counts.live_peak.max(counts.live);
        counts.blocks += 1;
        let index = usize::from(tag.0);
        if self.tags.len() <= index {
            self.tags.resize(index + 1, TagCounts::default());
        }
        let tagged = &mut self.tags[index];
        tagged.live += Bytes(size);
        tagged.peak = tagged.peak.max(tagged.live);
        Address(address)
    }

    fn give_back(&mut self, Place { arena, block }: Place, owner: u32, frees: u64) {
        let arena = &mut self.arenas[arena as usize];
        let entry = arena.blocks().get(block);
        let (size, tag) = (Bytes(entry.size), usize::from(entry.tag));
        arena.give_back(block, owner, frees);
        self.counts.live = self.counts.live - size;
        self.counts.blocks -= 1;
        let tagged = &mut self.tags[tag];
        tagged.live = tagged.live - size;
    }
}
