//! The program's allocations that can sleep.
//!
//! An allocation of 2 MiB or more comes from a pool; there is one for each context in which the program
//! allocates. Smaller ones stay with the driver. A freed allocation goes back to the device at once, as
//! the driver would do it, so the pool caches nothing.
#![allow(unsafe_code, reason = "borrows the program's contexts")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowtide_device::cuda::{BorrowedContext, Context, Driver};
use lowtide_device::{Address, Device};
use lowtide_pool::{Limit, Policy, Pool, Scope, StreamId};
use lowtide_release::{Ladder, Releaser, Request};
use lowtide_types::{Bytes, DeviceId, Ledger, LedgerKind, Phase, Receipt, SleepPolicy, Target};

use crate::driver::busy::Question;
use crate::driver::properties::Properties;
use crate::memory::unmanaged::{self as staying, Kind};
use crate::memory::virtual_memory::VirtualMemory;
use crate::memory::virtual_memory::block::ProgramsPool;
use crate::say::say;
use crate::sleep::{agent, suspend as suspending};

/// Allocations of at least this size can sleep: the page of virtual memory.
pub(crate) const LEAST: Bytes = Bytes::mib(2);

/// The allocations of a process.
#[derive(Default)]
pub(crate) struct Memory {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// By the context's handle.
    homes: BTreeMap<usize, Arc<Home>>,
    /// By the first address.
    allocations: BTreeMap<u64, Allocation>,
    last_id: u64,
}

/// A context in which the program allocates.
pub(crate) struct Home {
    pub(crate) context: usize,
    pub(crate) device: Device,
    pub(crate) pool: Pool,
    pub(crate) releaser: Releaser,
    pub(crate) question: Question,
    /// Held while an allocation is made or freed, so that none is given what another is about to return.
    changing: Mutex<()>,
    /// Pools for the program's own virtual memory, by what it is made with.
    programs: Mutex<BTreeMap<Properties, ProgramsPool>>,
}

/// An allocation of the program.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) at: u64,
    /// The size that the program asked for.
    pub(crate) bytes: u64,
    /// A number that no other allocation of the process has or had.
    pub(crate) id: u64,
    pub(crate) home: Arc<Home>,
}

impl Memory {
    /// Allocates in a context.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn allocate(
        &self,
        driver: &Arc<Driver>,
        context: NonNull<c_void>,
        bytes: u64,
    ) -> lowtide_pool::Result<u64> {
        let home = self.home(driver, context)?;
        // Where there is no multiple, the pool says that it is too large.
        let whole = Bytes(bytes.checked_next_multiple_of(LEAST.0).unwrap_or(bytes));
        let tag = home.pool.tag(TAG, SleepPolicy::Offload)?;
        let changing = home.changing();
        let at = home.pool.alloc(whole, StreamId::default(), tag)?.0;
        drop(changing);
        let mut tables = self.tables();
        tables.last_id += 1;
        let id = tables.last_id;
        tables.allocations.insert(at, Allocation { at, bytes, id, home });
        Ok(at)
    }

    /// Takes an allocation off the list, if one begins here.
    pub(crate) fn remove(&self, at: u64) -> Option<Allocation> {
        self.tables().allocations.remove(&at)
    }

    /// Returns the allocation that an address is in.
    pub(crate) fn around(&self, at: u64) -> Option<Allocation> {
        let tables = self.tables();
        let (_, found) = tables.allocations.range(..=at).next_back()?;
        (at - found.at < found.bytes).then(|| found.clone())
    }

    /// Takes the allocations of a context off the list.
    pub(crate) fn of_context(&self, context: usize) -> Vec<Allocation> {
        let mut tables = self.tables();
        let (own, others) = std::mem::take(&mut tables.allocations)
            .into_iter()
            .partition(|(_, allocation)| allocation.home.context == context);
        tables.allocations = others;
        BTreeMap::into_values(own).collect()
    }

    /// Gives up what the agent has in a context that is about to be destroyed.
    pub(crate) fn forget(&self, context: usize) {
        let home = self.tables().homes.remove(&context);
        drop(home);
    }

    /// Returns every context in which the program allocates.
    pub(crate) fn homes(&self) -> Vec<Arc<Home>> {
        self.tables().homes.values().cloned().collect()
    }

    /// Returns whether some memory that can sleep is on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.homes().iter().any(|home| home.on_device() > Bytes::ZERO)
    }

    /// Returns the number of allocations of a context, and their bytes.
    pub(crate) fn sum(&self, context: usize) -> (u64, Bytes) {
        let tables = self.tables();
        let own = tables.allocations.values().filter(|one| one.home.context == context);
        own.fold((0, Bytes::ZERO), |(count, sum), one| (count + 1, Bytes(sum.0 + one.bytes)))
    }

    /// Returns a home on a device: that of the current context if it is on this device, otherwise another of the
    /// program's; `None` if there is none.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn home_on(
        &self,
        driver: &Arc<Driver>,
        current: Option<(NonNull<c_void>, DeviceId)>,
        device: DeviceId,
    ) -> lowtide_pool::Result<Option<Arc<Home>>> {
        match current {
            Some((context, of_current)) if of_current == device => {
                self.home(driver, context).map(Some)
            }
            _ => Ok(self.homes().into_iter().find(|home| home.device.id() == device)),
        }
    }

    fn home(
        &self,
        driver: &Arc<Driver>,
        context: NonNull<c_void>,
    ) -> lowtide_pool::Result<Arc<Home>> {
        let key = context.addr().get();
        if let Some(home) = self.tables().homes.get(&key) {
            return Ok(Arc::clone(home));
        }
        // SAFETY: the program's context; `forget` is called before it is destroyed.
        let borrowed = unsafe { BorrowedContext::new(context) };
        let device = Device::cuda_with(Arc::clone(driver), Context::Borrowed(borrowed))?;
        let pool = Pool::builder(&device).policy(policy()).build()?;
        let releaser = lowtide::releaser(&device);
        releaser.add_pool(&pool);
        add_accounts(&releaser, key, device.id());
        let home = Arc::new(Home {
            context: key,
            device,
            pool,
            releaser,
            question: Question::default(),
            changing: Mutex::default(),
            programs: Mutex::default(),
        });
        // Another thread may have been faster; its home is as good.
        Ok(Arc::clone(self.tables().homes.entry(key).or_insert(home)))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const TAG: &str = "program";

/// Each allocation has chunks of its own, as few as possible; no arena for small blocks, which there are
/// none of. The driver takes long to suspend a process that has much registered memory.
fn policy() -> Policy {
    let policy = Policy::default().apart(true).chunk_most(Bytes::mib(512)).small_most(Bytes::ZERO);
    // Kernels that help to copy pay off within 0.1 s of a sleep. A wake here comes later, and is slower with them.
    let policy = policy.kernel_copies(Bytes::ZERO);
    if suspending::is_wanted() { policy.direct_backups(Bytes::ZERO) } else { policy }
}

/// Adds lines to a context's ledger for memory of the process that is not in its pool.
fn add_accounts(releaser: &Releaser, context: usize, device: DeviceId) {
    for kind in Kind::ALL {
        // Managed memory may be on the host.
        if kind != Kind::Managed {
            let bytes = move || staying::sum(kind, context);
            releaser.add_account(LedgerKind::Live, kind.name(), bytes).keep();
        }
    }
    let others = move || {
        let homes = agent::get().map(|agent| agent.memory.homes()).unwrap_or_default();
        let others = homes.iter().filter(|home| home.context != context);
        let others = others.filter(|home| home.device.id() == device);
        others.map(|home| home.on_device()).sum()
    };
    releaser.add_account(LedgerKind::Live, "other contexts of the program", others).keep();
}

impl Allocation {
    /// Gives the memory back to the device. Nothing may use it any more.
    pub(crate) fn give_back(&self) -> lowtide_pool::Result<()> {
        let _changing = self.home.changing();
        self.home.pool.free(Address(self.at), StreamId::default())?;
        self.home.pool.trim(Bytes::ZERO).map(drop)
    }
}

impl Home {
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pool for virtual memory of the program with these properties.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn programs_pool(
        &self,
        properties: Properties,
    ) -> lowtide_pool::Result<ProgramsPool> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = programs.get(&properties) {
            return Ok(known.clone());
        }
        let made = ProgramsPool::new(&self.device, properties, policy())?;
        self.releaser.add_pool(&made.pool);
        programs.insert(properties, made.clone());
        Ok(made)
    }

    /// Returns all its pools.
    fn pools(&self) -> Vec<Pool> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = programs.values().map(|one| one.pool.clone());
        std::iter::once(self.pool.clone()).chain(programs).collect()
    }

    /// Returns its memory that is on the device and can sleep.
    pub(crate) fn on_device(&self) -> Bytes {
        self.pools().iter().map(|pool| pool.counts().physical).sum()
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
    pub(crate) fn sleep_again(&self, mappings: &VirtualMemory) {
        if let Err(error) = self.try_sleep_again(mappings) {
            say!("memory of a context that woke stays on the device: {error}");
        }
    }

    fn try_sleep_again(&self, mappings: &VirtualMemory) -> lowtide_pool::Result<()> {
        mappings.take_mappings_away(self.context)?;
        for pool in self.pools() {
            pool.sleep_quiet(Scope::Whole, Limit::NONE)?;
        }
        Ok(())
    }

    /// Wakes all memory of the context, and makes the program's mappings of it again.
    pub(crate) fn wake(&self, mappings: &VirtualMemory) -> lowtide_pool::Result<Bytes> {
        let mut bytes = Bytes::ZERO;
        for pool in self.pools() {
            bytes += pool.wake(Scope::Whole)?.mapped;
        }
        mappings.bring_mappings_back(self.context)?;
        Ok(bytes)
    }
}
