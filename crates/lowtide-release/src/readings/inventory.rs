//! The inventory of a releaser: the device, the allocators on it, the owners and the hooks. Rungs are
//! given it as an argument and keep nothing of their own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use lowtide_pool::Pool;
use lowtide_types::{
    Bytes, DeviceId, Ledger, LedgerKind, LedgerLine, Reading, Target, ThreadMark, ThreadMarks,
};

use super::allocator::Allocator;
use super::gauge::{Gauge, take_reading};
use crate::callbacks::{Hook, HookPoint, Kept, Registration, Setting};
use crate::fork::ProcessMutex;
use crate::owners::Owners;

/// Memory that no allocator knows of, such as that of a library or of captured graphs.
struct Account {
    kind: LedgerKind,
    name: String,
    bytes: Box<dyn Fn() -> Bytes + Send + Sync>,
}

/// How often each allocator has handed out and taken back a block.
pub(crate) type Activity = Vec<(u64, u64)>;

/// The device, the allocators on it, the owners and the hooks that a release works with.
pub struct Inventory {
    gauge: Option<Arc<dyn Gauge>>,
    floor: AtomicU64,
    /// This process's share of the memory in use at the last reading.
    own: AtomicU64,
    disposable: AtomicBool,
    owners: Owners,
    pools: ProcessMutex<Vec<Pool>>,
    allocators: ProcessMutex<Vec<Weak<dyn Allocator>>>,
    hooks: ProcessMutex<Vec<(HookPoint, Weak<Hook>)>>,
    settings: ProcessMutex<Vec<Weak<dyn Setting>>>,
    accounts: ProcessMutex<Vec<Weak<Account>>>,
    /// What the last fallback left, if it freed nothing.
    in_vain: ProcessMutex<Option<Reading>>,
    kept: Arc<Kept>,
}

/// The value of `floor` and of `own` while they are unknown.
const UNKNOWN: u64 = u64::MAX;

impl Inventory {
    pub(crate) fn new(gauge: Option<Arc<dyn Gauge>>) -> Inventory {
        Inventory {
            gauge,
            floor: AtomicU64::new(UNKNOWN),
            own: AtomicU64::new(UNKNOWN),
            disposable: AtomicBool::new(false),
            owners: Owners::default(),
            pools: ProcessMutex::default(),
            allocators: ProcessMutex::default(),
            hooks: ProcessMutex::default(),
            settings: ProcessMutex::default(),
            accounts: ProcessMutex::default(),
            in_vain: ProcessMutex::default(),
            kept: Arc::default(),
        }
    }

    /// Returns the gauge of the device; `None` where there is no device.
    pub fn gauge(&self) -> Option<&dyn Gauge> {
        self.gauge.as_deref()
    }

    /// Returns by how much the device's numbers move by themselves.
    pub(crate) fn noise(&self) -> Bytes {
        self.gauge().map_or(Bytes::ZERO, Gauge::noise)
    }

    /// Returns the owners that a shutdown drops.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Returns the pools, which can sleep.
    pub fn pools(&self) -> Vec<Pool> {
        self.pools.lock().map_or_else(Vec::new, |pools| pools.clone())
    }

    /// Returns the floor of the device, where it is known. A floor that is larger than everything this
    /// process uses is not its floor, and does not count.
    pub fn floor(&self) -> Option<Bytes> {
        let (floor, own) = (self.floor.load(SeqCst), self.own.load(SeqCst));
        let is_possible = floor <= own.saturating_add(Target::ABOVE_FLOOR.0);
        (floor != UNKNOWN && is_possible).then_some(Bytes(floor))
    }

    /// Returns whether the process may lose everything that it has on the device.
    pub fn is_disposable(&self) -> bool {
        self.disposable.load(SeqCst)
    }

    pub(crate) fn set_floor(&self, floor: Bytes) {
        self.floor.store(floor.0, SeqCst);
    }

    pub(crate) fn set_disposable(&self, disposable: bool) {
        self.disposable.store(disposable, SeqCst);
    }

    pub(crate) fn add_pool(&self, pool: &Pool) {
        self.pools.push(pool.clone());
    }

    pub(crate) fn add_allocator(&self, allocator: Arc<dyn Allocator>) -> Registration {
        self.allocators.push(Arc::downgrade(&allocator));
        Registration::new(Arc::new(allocator), &self.kept)
    }

    pub(crate) fn add_hook(&self, point: HookPoint, hook: Hook) -> Registration {
        let hook = Arc::new(hook);
        self.hooks.push((point, Arc::downgrade(&hook)));
        Registration::new(hook, &self.kept)
    }

    pub(crate) fn add_setting(&self, setting: Arc<dyn Setting>) -> Registration {
        self.settings.push(Arc::downgrade(&setting));
        Registration::new(Arc::new(setting), &self.kept)
    }

    pub(crate) fn add_account(
        &self,
        kind: LedgerKind,
        name: String,
        bytes: impl Fn() -> Bytes + Send + Sync + 'static,
    ) -> Registration {
        let account = Arc::new(Account { kind, name, bytes: Box::new(bytes) });
        self.accounts.push(Arc::downgrade(&account));
        Registration::new(account, &self.kept)
    }

    /// Returns every allocator, the pools among them.
    pub fn allocators(&self) -> Vec<Arc<dyn Allocator>> {
        let pools = self.pools().into_iter().map(|pool| Arc::new(pool) as Arc<dyn Allocator>);
        pools.chain(registered(&self.allocators)).collect()
    }

    pub(crate) fn hooks(&self, point: HookPoint) -> Vec<Arc<Hook>> {
        let Some(mut hooks) = self.hooks.lock() else { return Vec::new() };
        hooks.retain(|(_, hook)| hook.strong_count() > 0);
        let here = hooks.iter().filter(|(at, _)| *at == point);
        here.filter_map(|(_, hook)| hook.upgrade()).collect()
    }

    /// Returns the hooks that can bring back what they take away, in the order of the points.
    pub(crate) fn restoring_hooks(&self) -> Vec<Arc<Hook>> {
        let hooks = HookPoint::ALL.into_iter().flat_map(|point| self.hooks(point));
        hooks.filter(|hook| hook.can_restore()).collect()
    }

    /// Returns whether work that comes after a release may have something to wake or to bring back.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.pools().is_empty() || !self.restoring_hooks().is_empty()
    }

    /// Returns what a trim of all allocators can return to the driver.
    pub(crate) fn trimmable(&self) -> Bytes {
        let allocators = self.allocators().into_iter();
        allocators.map(|allocator| or_default(|| allocator.trimmable())).sum()
    }

    /// Returns how often the allocators have handed out and taken back blocks; `None` if one of them
    /// does not count.
    pub(crate) fn activity(&self) -> Option<Activity> {
        let _asking = self.asking()?;
        let allocators = self.allocators().into_iter();
        allocators.map(|allocator| or_default(|| allocator.activity())).collect()
    }

    /// Returns whether the last fallback freed nothing, and nothing has changed since as far as the numbers tell.
    pub(crate) fn fallback_was_in_vain(&self, now: &Reading) -> bool {
        let left = self.in_vain.lock().and_then(|left| *left);
        left.is_some_and(|left| left.in_use().is_some() && now.is_like(&left, self.noise()))
    }

    /// Notes what a fallback has done.
    pub(crate) fn note_fallback(&self, before: &Reading, after: Reading) {
        let is_in_vain = after.is_like(before, self.noise());
        if let Some(mut left) = self.in_vain.lock() {
            *left = is_in_vain.then_some(after);
        }
    }

    pub(crate) fn settings(&self) -> Vec<Arc<dyn Setting>> {
        registered(&self.settings)
    }

    /// Reads the device's number and the allocators' own, right now. Reads nothing in a forked child
    /// that inherited the releaser, and in a gauge, an allocator or an account that is being asked for
    /// its own number: it would be asked again, without end.
    pub fn read(&self) -> Reading {
        self.recount();
        self.read_as_counted()
    }

    /// Reads the same, with what was counted last of allocators for which that takes long.
    pub(crate) fn read_as_counted(&self) -> Reading {
        self.with_counts(self.read_device())
    }

    /// Says that what the allocators have counted may have changed.
    pub(crate) fn recount(&self) {
        let Some(_asking) = self.asking() else { return };
        self.allocators().iter().for_each(|allocator| or_default(|| allocator.recount()));
    }

    /// Reads the device's number alone. To ask the allocators takes longer: a C library looks through its
    /// free blocks to count them.
    pub(crate) fn read_device(&self) -> Reading {
        let Some(_asking) = self.asking() else { return Reading::default() };
        let reading = take_reading(self.gauge());
        self.note_own(reading.own);
        reading
    }

    /// Puts the allocators' own numbers beside the device's.
    pub(crate) fn with_counts(&self, mut reading: Reading) -> Reading {
        let Some(_asking) = self.asking() else { return reading };
        (reading.allocated, reading.reserved) = Default::default();
        for allocator in self.allocators() {
            let own = or_default(|| allocator.counts());
            reading.allocated += own.allocated;
            reading.reserved += own.reserved;
        }
        reading
    }

    // A process that uses nothing has no context yet, which says nothing about the floor.
    fn note_own(&self, own: Option<Bytes>) {
        let knew = self.floor();
        let own = own.filter(|own| *own > Bytes::ZERO).map_or(UNKNOWN, |own| own.0);
        self.own.store(own, SeqCst);
        if let (Some(floor), None) = (knew, self.floor()) {
            tracing::warn!(%floor, own = %Bytes(own), "the floor is not used: it is larger than all that this process uses");
        }
    }

    /// Returns a breakdown of all device memory in use; `None` where the device cannot be asked, and
    /// where [`Inventory::read`] reads nothing.
    pub fn ledger(&self) -> Option<Ledger> {
        self.recount();
        self.ledger_as_counted()
    }

    /// Returns the same, with what was counted last of allocators for which that takes long.
    pub(crate) fn ledger_as_counted(&self) -> Option<Ledger> {
        let gauge = self.gauge()?;
        let _asking = self.asking()?;
        let driver = gauge.usage().ok()?.in_use();
        let own = gauge.own();
        self.note_own(own);
        // Allocators count their memory wherever it is.
        let mut lines = if gauge.is_away() { Vec::new() } else { self.own_lines() };
        if let Some(own) = own.filter(|_| matches!(gauge.id(), DeviceId::Cuda(_))) {
            lines.extend(self.rest(own, lines.iter().map(|line| line.bytes).sum()));
        }
        let kind = LedgerKind::Others;
        let others = gauge.others().into_iter();
        lines.extend(others.map(|(name, bytes)| LedgerLine { kind, name, bytes }));
        Some(Ledger::new(gauge.id(), driver, lines))
    }

    fn own_lines(&self) -> Vec<LedgerLine> {
        let mut lines: Vec<LedgerLine> = {
            let allocators = self.allocators();
            allocators.iter().flat_map(|allocator| or_default(|| allocator.lines())).collect()
        };
        for account in registered(&self.accounts) {
            let (kind, name) = (account.kind, account.name.clone());
            lines.push(LedgerLine { kind, name, bytes: or_default(|| (account.bytes)()) });
        }
        if let Some(bytes) = self.floor() {
            let (kind, name) = (LedgerKind::Context, "bare context".to_owned());
            lines.push(LedgerLine { kind, name, bytes });
        }
        lines
    }

    // What this process uses on a GPU beside all that is known: loaded modules, workspaces, and the
    // context itself where no floor tells how much of it that is.
    fn rest(&self, own: Bytes, known: Bytes) -> Option<LedgerLine> {
        let bytes = Bytes(own.0.checked_sub(known.0).filter(|rest| *rest > 0)?);
        let (kind, name) = match self.floor() {
            Some(_) => (LedgerKind::Libraries, "loaded modules, workspaces"),
            None => (LedgerKind::ContextAndLibraries, "`lowtide doctor` tells them apart"),
        };
        Some(LedgerLine { kind, name: name.to_owned(), bytes })
    }
}

/// What a thread does for a releaser. Code of the caller that a release runs, such as a clock or a gauge,
/// may ask the same releaser for a release, or for its numbers. Granted, the call would wait for its own
/// caller, or ask the same code again, without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Runs a release, or waits for its turn.
    Releasing,
    /// Writes the receipt of a release that it refused, for which it asks for numbers.
    Refusing,
    /// Asks a gauge, allocators or accounts for their numbers.
    Asking,
}

thread_local! {
    /// What this thread does, each with the address of the inventory for which it does it: it stays where
    /// it is while a mark names it, because it is in use.
    static DOING: ThreadMarks<(usize, Doing)> = const { ThreadMarks::new() };
}

impl Inventory {
    /// Returns whether a forked child inherited the inventory.
    pub(crate) fn is_inherited(&self) -> bool {
        self.pools.is_inherited()
    }

    /// Marks what this thread does for the releaser.
    pub(crate) fn mark(&self, doing: Doing) -> ThreadMark<(usize, Doing)> {
        ThreadMarks::set(&DOING, (self.address(), doing))
    }

    /// Returns whether this thread does this for the releaser.
    pub(crate) fn is_doing(&self, doing: Doing) -> bool {
        ThreadMarks::has(&DOING, &(self.address(), doing))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Marks that this thread asks for numbers; `None` if it does so already, and in a forked child.
    fn asking(&self) -> Option<ThreadMark<(usize, Doing)>> {
        let may_ask = !self.is_inherited() && !self.is_doing(Doing::Asking);
        may_ask.then(|| self.mark(Doing::Asking))
    }
}

/// Returns what is still registered.
fn registered<T: ?Sized>(list: &ProcessMutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let Some(mut list) = list.lock() else { return Vec::new() };
    list.retain(|one| one.strong_count() > 0);
    list.iter().filter_map(Weak::upgrade).collect()
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gauge() {
            Some(gauge) => write!(f, "Inventory({})", gauge.id()),
            None => f.write_str("Inventory(no device)"),
        }
    }
}

/// Returns the answer of code that is not ours, or nothing if it panics. So a panic costs no receipt:
/// what it would have reported is in the ledger's line `unknown`. The panic reports itself.
fn or_default<T: Default>(ask: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_default()
}
