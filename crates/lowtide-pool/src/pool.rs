//! The pool: blocks for callers, chunks from the device, one lock between.
//!
//! A hit takes the lock, finds a block and touches no driver. A miss is in `miss.rs`, sleep and wake
//! are in their own files.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lowtide_device::{Address, Bytes, Device, Reservation};

use crate::arena::Arena;
use crate::block::Block;
use crate::books::{Books, Counts, ROOMS, Request, Room, room_of};
use crate::policy::{GRAIN, Policy};
use crate::pressure::{Answer, Callbacks, Pressure, Subscription};
use crate::record::Recording;
use crate::shelf::Shelf;
use crate::tags::{Phase, Scope, SleepPolicy, Tag};
use crate::{Error, Fence, Result, StreamId};

/// Address space for the small and the large blocks of a tag, in multiples of the device: holes
/// cost nothing.
const SPACE_FACTORS: [u64; ROOMS] = [2, 8];

/// The name of the tag that is there from the start.
const DEFAULT_TAG: &str = "default";

/// Blocks over a device's memory, which can leave the device and come back under the same
/// addresses. Cheap to clone.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// use lowtide_pool::{Policy, Pool, Scope, SleepPolicy, StreamId};
/// # fn main() -> lowtide_pool::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let pool = Pool::new(&device, Policy::default(), None)?;
/// let weights = pool.tag("weights", SleepPolicy::Offload)?;
/// let block = pool.alloc(Bytes::mib(5), StreamId(0), weights)?;
/// assert_eq!(pool.counts().physical, device.usage()?.in_use());
///
/// pool.sleep(Scope::Whole)?; // the device's memory is free now
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// pool.wake(Scope::Whole)?; // the same bytes are at the same address again
///
/// pool.free(block, StreamId(0))?;
/// pool.trim(Bytes::ZERO)?;
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) policy: Policy,
    pub(crate) fence: Option<Arc<dyn Fence>>,
    pub(crate) callbacks: Callbacks,
    small_grains: u32,
    books: Mutex<Books>,
    /// A plan at the driver was done, or a tag has another phase.
    changed: Condvar,
}

impl Pool {
    /// A pool over a device. Without a fence, a free means that nothing uses the block any more.
    ///
    /// # Errors
    /// If the device has no addresses to give.
    pub fn new(device: &Device, policy: Policy, fence: Option<Arc<dyn Fence>>) -> Result<Pool> {
        let shared = Shared {
            device: device.clone(),
            policy,
            callbacks: Callbacks::default(),
            small_grains: u32::try_from(policy.small_most.0 / GRAIN).unwrap_or(u32::MAX),
            books: Mutex::new(Books::new(fence.is_none())),
            changed: Condvar::new(),
            fence,
        };
        let pool = Pool { shared: Arc::new(shared) };
        pool.tag(DEFAULT_TAG, SleepPolicy::Offload)?;
        Ok(pool)
    }

    /// The tag of this name, made if it is new.
    ///
    /// # Errors
    /// [`Error::OtherPolicy`] where it is known with another policy; if there are no addresses for it.
    pub fn tag(&self, name: &str, policy: SleepPolicy) -> Result<Tag> {
        if let Some(tag) = self.books().tags.known_as(name, policy)? {
            return Ok(tag);
        }
        let info = self.shared.device.info();
        let room = |factor: u64| -> Result<Room> {
            let space = info.total.0.saturating_mul(factor) / info.page.0 * info.page.0;
            let reservation = self.shared.device.reserve(Bytes(space))?;
            Ok(Room { arena: Arena::new(reservation, info.page.0), shelf: Shelf::default() })
        };
        let rooms = [room(SPACE_FACTORS[0])?, room(SPACE_FACTORS[1])?];
        let mut books = self.books();
        // Another thread may have been faster; its rooms are as good.
        if let Some(tag) = books.tags.known_as(name, policy)? {
            return Ok(tag);
        }
        let tag = books.tags.add(name, policy)?;
        books.rooms.extend(rooms);
        Ok(tag)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.shared.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changed in the books.
    pub(crate) fn wait<'a>(&self, books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
        self.shared.changed.wait(books).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for that.
    pub(crate) fn notify(&self) {
        self.shared.changed.notify_all();
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What the pool holds.
    pub fn counts(&self) -> Counts {
        self.books().counts
    }

    /// Whether a tag's memory is on the device.
    ///
    /// # Errors
    /// [`Error::UnknownTag`] for a tag of another pool.
    pub fn phase(&self, tag: Tag) -> Result<Phase> {
        Ok(self.books().tags.get(tag)?.phase)
    }

    /// A block of at least this size. Its address stays until it is freed, through every sleep.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is out of memory even after every free chunk was moved
    /// and everybody was asked; [`Error::Asleep`] where the tag sleeps; where the policy
    /// wakes it, what [`Pool::wake`] says.
    pub fn alloc(&self, size: Bytes, stream: StreamId, tag: Tag) -> Result<Address> {
        let Ok(grains) = u32::try_from(size.0.max(1).div_ceil(GRAIN)) else {
            return Err(Error::NoAddresses { size });
        };
        let room = room_of(tag, grains, self.shared.small_grains);
        let request = Request { room, grains, stream, tag };
        loop {
            let mut books = self.books();
            let known = books.tags.get(tag)?;
            match known.phase {
                Phase::Awake => {}
                Phase::Turning => {
                    drop(self.wait(books));
                    continue;
                }
                Phase::Asleep if self.shared.policy.wake_on_alloc => {
                    drop(books);
                    self.wake(Scope::Tags(&[tag]))?;
                    continue;
                }
                Phase::Asleep => return Err(Error::Asleep { tag: known.name.to_string() }),
            }
            let found = match books.hit(&request) {
                Some(address) => Some(address),
                None => books.take(&request),
            };
            if let Some(address) = found {
                if let Some(recorder) = &mut books.recorder {
                    recorder.allocated(address, size, stream);
                }
                return Ok(address);
            }
            drop(books);
            // `None` where the tag began to turn meanwhile.
            if let Some(address) = self.miss(&request)? {
                if let Some(recorder) = &mut self.books().recorder {
                    recorder.allocated(address, size, stream);
                }
                return Ok(address);
            }
        }
    }

    /// The same as something that frees itself.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn block(&self, size: Bytes, stream: StreamId, tag: Tag) -> Result<Block> {
        Block::new(self, size, stream, tag)
    }

    /// Frees a block, asleep or awake. Work that was given to `stream` before may still use it;
    /// other streams are not given it until the fence says that the stream has passed.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`] where no live block begins at this address.
    pub fn free(&self, address: Address, stream: StreamId) -> Result<()> {
        let mut books = self.books();
        books.give_back(address, stream, self.shared.small_grains)?;
        if let Some(recorder) = &mut books.recorder {
            recorder.freed(address, stream);
        }
        if books.streams.is_crowded() {
            drop(books);
            self.settle_streams(false)?;
        }
        Ok(())
    }

    /// Where a live block is, for copies with a [`lowtide_device::Stream`]: the reservation it is
    /// in, and its offset there.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`] where no live block begins at this address.
    pub fn place_of(&self, address: Address) -> Result<(Reservation, Bytes)> {
        let mut books = self.books();
        let room = books.room_at(address, self.shared.small_grains)?;
        let reservation = room.arena.reservation.clone();
        let offset = Bytes(address.0 - reservation.address().0);
        Ok((reservation, offset))
    }

    /// Gives cached memory back to the device, down to `keep`; says how much that was. Whole
    /// chunks only: where a byte of one is live, it stays.
    ///
    /// # Errors
    /// What the device refused; what was given back until then stays given back.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.trim_while(keep, || true)
    }

    /// The same for as long as `go_on` says so, which is asked before each chunk, the largest first.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use lowtide_device::{Bytes, Device};
    /// # use lowtide_pool::{Policy, Pool};
    /// # let pool = Pool::new(&Device::dry_run(Bytes::gib(1)).0, Policy::default(), None).unwrap();
    /// let until = Instant::now() + Duration::from_millis(5);
    /// let given_back = pool.trim_while(Bytes::ZERO, || Instant::now() < until)?;
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::trim`].
    pub fn trim_while(&self, keep: Bytes, go_on: impl FnMut() -> bool) -> Result<Bytes> {
        self.settle_streams(false)?;
        self.give_free_chunks_back(keep, go_on)
    }

    /// Has somebody asked, before out of memory is reported, whether it can free something. No lock
    /// is held meanwhile: it may free blocks, trim, or put other tags to sleep.
    pub fn on_pressure(
        &self,
        callback: impl Fn(&Pressure) -> Answer + Send + Sync + 'static,
    ) -> Subscription {
        self.shared.callbacks.add(callback)
    }

    /// Begins to record what the pool is asked; what was recorded so far is dropped.
    pub fn start_recording(&self) {
        self.books().recorder = Some(Recording::default());
    }

    /// Ends the recording, if there is one, and hands it over.
    pub fn stop_recording(&self) -> Option<Recording> {
        self.books().recorder.take()
    }

    /// What must always hold.
    ///
    /// # Panics
    /// Where it does not.
    pub fn check(&self) {
        self.books().check(self.shared.small_grains);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { live, physical, blocks, .. } = self.counts();
        let id = self.shared.device.info().id;
        write!(f, "Pool({blocks} blocks, {live} live, {physical} of {id})")
    }
}
