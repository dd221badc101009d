//! The pool: blocks for callers, chunks from the device, one lock between.
//!
//! What a pool does is in files of their own: `alloc.rs`, `miss.rs`, `trim.rs`, `block.rs` here, sleep and wake in
//! `turns/`, backups ahead of time in `ahead/`.

mod alloc;
pub(crate) mod block;
pub(crate) mod fence;
pub(crate) mod host_access;
mod miss;
pub(crate) mod moves;
pub(crate) mod pressure;
mod settle;
pub(crate) mod snapshot;
mod trim;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use lowtide_device::{Address, Bytes, Device, Reservation};
use lowtide_types::{Phase, SleepPolicy};

use crate::Result;
use crate::lock::monitor::Monitor;
use crate::lock::{Mutex, MutexGuard};
use crate::policy::{GRAIN, Policy};
use crate::pool::fence::Fence;
use crate::pool::host_access::HostAccessCell;
use crate::pool::pressure::{Callbacks, Neighbours, Pressure, PressureAnswer, Subscription};
use crate::state::arena::Arena;
use crate::state::arenas::ARENAS_OF_TAG;
use crate::state::tags::Tag;
use crate::state::{PoolCounts, State};
use crate::trace::record::Recording;

/// Address space for the small and the large blocks of a tag, in multiples of the device: holes
/// cost nothing.
const SPACE_FACTORS: [u64; ARENAS_OF_TAG] = [2, 8];

/// The name of the tag that is there from the start.
const DEFAULT_TAG: &str = "default";

/// The pools of this process.
static POOLS: Neighbours<Shared> = Neighbours::new();

/// An allocator of device memory whose blocks can leave the device and come back under the same
/// addresses. Cloning it is cheap and gives another handle on the same pool.
///
/// ```
/// use lowtide_device::{Bytes, Device, HostOptions};
/// use lowtide_pool::{Pool, Scope};
/// # fn main() -> lowtide_pool::Result<()> {
/// let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// let pool = Pool::new(&device)?;
/// let weights = pool.block(Bytes::mib(5))?;
/// weights.write(Bytes::ZERO, b"layer 0")?;
///
/// pool.sleep(Scope::Whole)?; // the device's memory is free now
/// assert_eq!(device.usage()?.in_use(), Bytes::ZERO);
/// pool.wake(Scope::Whole)?; // the same bytes are at the same address again
///
/// let mut bytes = [0; 7];
/// weights.read(Bytes::ZERO, &mut bytes)?;
/// assert_eq!(&bytes, b"layer 0");
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
    pub(crate) monitor: Monitor<State>,
    pub(crate) access: HostAccessCell,
    /// Where the program allocated live blocks, by address. Only blocks that free themselves ([`block::Block`]) are
    /// recorded: it costs one entry when such a block is made and when it goes.
    pub(crate) allocated_at: Mutex<HashMap<u64, &'static Location<'static>>>,
}

/// Settings of a pool to be made, from [`Pool::builder`].
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder<'a> {
    device: &'a Device,
    policy: Policy,
    fence: Option<Arc<dyn Fence>>,
}

impl PoolBuilder<'_> {
    /// Sets the policy. Default: [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the fence that says how far streams are. Default: none; a free then means that nothing
    /// uses the block any more.
    pub fn fence(mut self, fence: Arc<dyn Fence>) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// If the device has no addresses to give.
    pub fn build(self) -> Result<Pool> {
        let PoolBuilder { device, policy, fence } = self;
        let small_grains = u32::try_from(policy.small_most().0 / GRAIN).unwrap_or(u32::MAX);
        let shared = Shared {
            device: device.clone(),
            policy,
            callbacks: Callbacks::default(),
            monitor: Monitor::new(State::new(fence.is_none(), small_grains)),
            access: HostAccessCell::default(),
            allocated_at: Mutex::default(),
            fence,
        };
        let pool = Pool { shared: Arc::new(shared) };
        pool.tag(DEFAULT_TAG, SleepPolicy::Offload)?;
        POOLS.add(&pool.shared);
        Ok(pool)
    }
}

impl fmt::Debug for PoolBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence.is_some();
        f.debug_struct("PoolBuilder")
            .field("device", &self.device)
            .field("policy", &self.policy)
            .field("fence", &fence)
            .finish()
    }
}

impl Pool {
    /// Makes a pool on `device` with the default policy and without a fence: a free means that
    /// nothing uses the block any more.
    ///
    /// # Errors
    /// If the device has no addresses to give.
    pub fn new(device: &Device) -> Result<Pool> {
        Pool::builder(device).build()
    }

    /// Begins a pool with a policy or a fence of its own.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use lowtide_device::{Bytes, Device};
    /// # use lowtide_pool::{Policy, Pool, StreamFence};
    /// # let device = Device::dry_run(Bytes::gib(1)).0;
    /// let fence = Arc::new(StreamFence::default());
    /// let policy = Policy::default().wake_on_alloc(true);
    /// let pool = Pool::builder(&device).policy(policy).fence(fence).build()?;
    /// # Ok::<(), lowtide_pool::Error>(())
    /// ```
    pub fn builder(device: &Device) -> PoolBuilder<'_> {
        PoolBuilder { device, policy: Policy::default(), fence: None }
    }

    /// Returns the tag of this name, made if it is new.
    ///
    /// # Errors
    /// [`crate::Error::OtherPolicy`] where it exists with another policy; if there are no addresses
    /// for it.
    pub fn tag(&self, name: &str, policy: SleepPolicy) -> Result<Tag> {
        if let Some(tag) = self.state()?.tags.known_as(name, policy)? {
            return Ok(tag);
        }
        let info = self.shared.device.info();
        let arena = |factor: u64| -> Result<Arena> {
            let space = info.total.0.saturating_mul(factor) / info.page.0 * info.page.0;
            let reservation = self.shared.device.reserve(Bytes(space))?;
            Ok(Arena::new(reservation, info.page.0))
        };
        let arenas = [arena(SPACE_FACTORS[0])?, arena(SPACE_FACTORS[1])?];
        let mut state = self.state()?;
        // Another thread may have been faster; its arenas are as good.
        if let Some(tag) = state.tags.known_as(name, policy)? {
            return Ok(tag);
        }
        let tag = state.tags.add(name, policy)?;
        state.arenas.extend(arenas);
        Ok(tag)
    }

    /// Returns the tag of this name, if there is one.
    ///
    /// # Errors
    /// As [`Pool::health`].
    pub fn find_tag(&self, name: &str) -> Result<Option<Tag>> {
        Ok(self.state()?.tags.find(name))
    }

    #[inline]
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.shared.monitor.lock()
    }

    /// Returns an error where the pool refuses all work, and why: the same that every other call returns.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] after a panic in the middle of a change;
    /// [`lowtide_device::Error::Forked`] in a forked child, whose pool this is not.
    pub fn health(&self) -> Result<()> {
        self.state().map(drop)
    }

    /// Returns the device that the pool takes memory from.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Returns the pool's numbers at this moment. Those of a broken pool may be wrong ([`Pool::health`]
    /// tells), apart from `physical`; in a forked child all are zero.
    pub fn counts(&self) -> PoolCounts {
        match self.state() {
            Ok(state) => state.counts(),
            Err(_) => self
                .shared
                .monitor
                .lock_as_it_is()
                .map_or_else(PoolCounts::default, |state| state.counts_as_it_is()),
        }
    }

    /// Returns whether some addresses of a range are reserved by the pool, with or without memory. False where
    /// the pool refuses all work.
    pub fn reserves(&self, range: &Range<u64>) -> bool {
        let Ok(state) = self.state() else { return false };
        let overlaps = |reservation: &Reservation| {
            let start = reservation.address().0;
            start < range.end && range.start < start + reservation.size().0
        };
        state.arenas.iter().any(|(_, arena)| overlaps(&arena.reservation))
    }

    /// Returns whether a tag's memory is on the device.
    ///
    /// # Errors
    /// [`crate::Error::UnknownTag`] for a tag of another pool.
    pub fn phase(&self, tag: Tag) -> Result<Phase> {
        Ok(self.state()?.tags.get(tag)?.phase())
    }

    /// Returns where a live block is, for copies with a [`lowtide_device::Stream`]: its reservation,
    /// and its offset in it.
    ///
    /// # Errors
    /// [`crate::Error::UnknownBlock`] where no live block begins at this address.
    pub fn place_of(&self, address: Address) -> Result<(Reservation, Bytes)> {
        let mut state = self.state()?;
        let arena_id = state.arena_at(address)?;
        let reservation = state.arenas[arena_id].reservation.clone();
        let offset = Bytes(address.0 - reservation.address().0);
        Ok((reservation, offset))
    }

    /// Registers a callback that is asked to free memory before the pool reports out of memory. No
    /// lock is held meanwhile: the callback may free blocks, trim, or put other tags to sleep. It may
    /// also allocate and wake, on its thread; if there is no room for that, it is refused and no
    /// callback of the same pool is asked.
    pub fn on_pressure(
        &self,
        callback: impl Fn(&Pressure) -> PressureAnswer + Send + Sync + 'static,
    ) -> Subscription {
        self.shared.callbacks.add(callback)
    }

    /// Asks for memory before a request is refused: first the pools on the same device, which cache some, then the
    /// callbacks. No lock of a pool is held meanwhile.
    pub(crate) fn ask_for_memory(&self, pressure: &Pressure) -> PressureAnswer {
        let trimmed = |neighbour: &Pool| match neighbour.trim(Bytes::ZERO) {
            Ok(given_back) => given_back > Bytes::ZERO,
            Err(error) => {
                tracing::debug!(%error, "a neighbour gives nothing back");
                false
            }
        };
        let others = POOLS.of(&self.shared).into_iter();
        let here = others.filter(|other| other.device.is(&self.shared.device));
        let given_back =
            here.filter(|shared| trimmed(&Pool { shared: Arc::clone(shared) })).count();
        if given_back > 0 { PressureAnswer::Retry } else { self.shared.callbacks.ask(pressure) }
    }

    /// Begins to record allocations and frees. An earlier recording is dropped.
    ///
    /// # Errors
    /// As [`Pool::health`].
    pub fn start_recording(&self) -> Result<()> {
        self.state()?.recorder = Some(Recording::default());
        Ok(())
    }

    /// Ends the recording and returns it, if there is one.
    ///
    /// # Errors
    /// As [`Pool::health`].
    pub fn stop_recording(&self) -> Result<Option<Recording>> {
        Ok(self.state()?.recorder.take())
    }

    /// Checks every invariant of the pool, for tests.
    ///
    /// # Panics
    /// Where one does not hold, and where the pool refuses all work ([`Pool::health`]).
    pub fn check(&self) {
        match self.state() {
            Ok(state) => state.check(),
            Err(refused) => panic!("{refused}"),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A thread of the parent may have been in the middle of a change when this process was forked, so
        // nothing of the parent's tables is even dropped here.
        if !self.shared.monitor.is_own() {
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolCounts { live, physical, blocks, .. } = self.counts();
        let id = self.shared.device.info().id;
        write!(f, "Pool({blocks} blocks, {live} live, {physical} of {id})")
    }
}
