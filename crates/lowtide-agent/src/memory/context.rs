//! A context in which the program allocates: its pools, and the sleep and wake of all of them.
#![allow(unsafe_code, reason = "borrows the program's contexts")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::cuda::{BorrowedContext, Context, Driver};
use lowtide_device::{Address, Device};
use lowtide_pool::{Limit, Policy, Pool, Scope, StreamId};
use lowtide_release::{Ladder, Releaser, Request};
use lowtide_types::{Bytes, DeviceId, Ledger, LedgerKind, Phase, Receipt, SleepPolicy, Target};

use crate::driver::layouts::{Access, Properties};
use crate::memory::unmanaged::{self, Kind};
use crate::memory::virtual_pool::{Peers, VirtualPool, open_to};
use crate::settings;

/// The tag of plain allocations in their pool, and in the ledger.
pub(crate) const TAG: &str = "program";

/// A context in which the program allocates.
pub(crate) struct ProgramContext {
    pub(crate) handle: usize,
    pub(crate) device: Device,
    /// The pool of its plain allocations.
    pub(crate) pool: Pool,
    releaser: Releaser,
    /// Held while an allocation is made or freed, so that none is given what another is about to return.
    changing: Mutex<()>,
    /// The devices that may use its plain memory, too.
    peers: Peers,
    /// Pools for the program's own virtual memory, by what it is made with.
    virtual_pools: Mutex<BTreeMap<Properties, VirtualPool>>,
}

/// Each allocation has chunks of its own, as few as possible; no arena for small blocks, which there are
/// none of. The driver takes long to suspend a process that has much registered memory.
fn policy() -> Policy {
    let policy = Policy::default().apart(Some(Bytes::mib(512)));
    if settings::suspends_when_idle() { policy.direct_backups(Bytes::ZERO) } else { policy }
}

impl ProgramContext {
    /// Makes the pool of a context. `others` counts the memory of other contexts on its device.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        handle: usize,
        others: impl Fn(&Device) -> Bytes + Send + Sync + 'static,
    ) -> lowtide_pool::Result<ProgramContext> {
        let context =
            NonNull::new(ptr::with_exposed_provenance_mut(handle)).expect("the current context");
        // SAFETY: the program's context; it is forgotten before it is destroyed.
        let borrowed = unsafe { BorrowedContext::new(context) };
        let device = Device::cuda_with(Arc::clone(driver), Context::Borrowed(borrowed))?;
        let peers = Peers::default();
        let pool = Pool::builder(&open_to(&device, &peers)).policy(policy()).build()?;
        let releaser = lowtide::releaser(&device);
        releaser.add_pool(&pool);
        // Memory of the process that is not in its pool. Managed memory may be on the host.
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Managed) {
            let bytes = move || unmanaged::sum(kind, handle);
            releaser.add_account(LedgerKind::Live, kind.name(), bytes).keep();
        }
        let own = device.clone();
        let others = move || others(&own);
        releaser.add_account(LedgerKind::Live, "other contexts of the program", others).keep();
        let (changing, virtual_pools) = (Mutex::default(), Mutex::default());
        Ok(ProgramContext { handle, device, pool, releaser, changing, peers, virtual_pools })
    }

    /// Allocates a block in one of its pools.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn allocate(
        &self,
        pool: &Pool,
        tag: &str,
        bytes: Bytes,
    ) -> lowtide_pool::Result<Address> {
        let tag = pool.tag(tag, SleepPolicy::Offload)?;
        let _changing = self.changing();
        pool.alloc(bytes, StreamId::default(), tag)
    }

    /// Gives a block of one of its pools back to the device. Nothing may use it any more.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn give_back(&self, pool: &Pool, at: Address) -> lowtide_pool::Result<()> {
        let _changing = self.changing();
        pool.free(at, StreamId::default())?;
        pool.trim(Bytes::ZERO).map(drop)
    }

    /// Lets another device use the plain memory that is made from now on.
    pub(crate) fn let_in(&self, peer: DeviceId) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
    }

    /// Returns who may use its plain memory.
    pub(crate) fn access(&self) -> Vec<Access> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.iter().copied().chain([self.device.id()]).map(Access::all).collect()
    }

    /// Returns the pool for virtual memory of the program with these properties.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn virtual_pool(&self, properties: Properties) -> lowtide_pool::Result<VirtualPool> {
        let mut pools = self.virtual_pools();
        if let Some(known) = pools.get(&properties) {
            return Ok(known.clone());
        }
        let made = VirtualPool::new(&self.device, properties, policy())?;
        self.releaser.add_pool(&made.pool);
        pools.insert(properties, made.clone());
        Ok(made)
    }

    /// Returns its memory that is on the device and can sleep.
    pub(crate) fn on_device(&self) -> Bytes {
        self.pools().iter().map(|pool| pool.counts().physical).sum()
    }

    /// Returns whether some addresses of a range are of its pools.
    pub(crate) fn reserves(&self, range: &Range<u64>) -> bool {
        self.pools().iter().any(|pool| pool.reserves(range))
    }

    /// Returns its memory that sleeps.
    pub(crate) fn asleep(&self) -> Bytes {
        self.pools().iter().map(|pool| pool.counts().asleep).sum()
    }

    /// Makes what a sleep needs and reads the numbers that it will read, which loads NVML. What is made
    /// takes device memory, so it is there before the first number is read.
    pub(crate) fn prepare(&self) {
        for pool in self.pools() {
            // The sleep tries on its own, and its receipt says what failed.
            let _refused = pool.prepare_sleep();
        }
        self.releaser.inventory().read();
    }

    /// Moves memory of the context off the device: all of it, or none if the target is met before.
    pub(crate) fn release(&self, name: &str, to: Option<Target>) -> Receipt {
        let ladder = Ladder::of(vec![Arc::new(lowtide_release::rungs::Sleep)]);
        let mut request = Request::new(name, ladder).claiming(self.on_device());
        if let Some(to) = to {
            request = request.to(to);
        }
        self.releaser.release(request)
    }

    /// Returns all memory in use on the device, broken down; `None` where the device cannot be asked.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        self.releaser.ledger()
    }

    /// Returns whether none of its memory is on the device.
    pub(crate) fn is_asleep(&self) -> bool {
        let tags = self.pools().into_iter().flat_map(|pool| pool.snapshot().tags);
        tags.into_iter().all(|tag| tag.phase == Phase::Asleep || tag.physical_bytes == Bytes::ZERO)
    }

    /// Returns whether some of its memory sleeps.
    pub(crate) fn has_sleeping(&self) -> bool {
        let mut tags = self.pools().into_iter().flat_map(|pool| pool.snapshot().tags);
        tags.any(|tag| tag.phase == Phase::Asleep)
    }

    /// Puts memory that woke, and that nobody has used since, back to sleep.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn sleep_again(&self) -> lowtide_pool::Result<()> {
        self.pools()
            .iter()
            .try_for_each(|pool| pool.sleep_quiet(Scope::Whole, Limit::NONE).map(drop))
    }

    /// Wakes all memory of the context.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn wake(&self) -> lowtide_pool::Result<Bytes> {
        self.pools().iter().map(|pool| pool.wake(Scope::Whole).map(|woken| woken.mapped)).sum()
    }

    /// Returns all its pools.
    fn pools(&self) -> Vec<Pool> {
        let pools = self.virtual_pools();
        let of_virtual = pools.values().map(|one| one.pool.clone());
        std::iter::once(self.pool.clone()).chain(of_virtual).collect()
    }

    /// Keeps allocations from being made and freed.
    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn virtual_pools(&self) -> MutexGuard<'_, BTreeMap<Properties, VirtualPool>> {
        self.virtual_pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
