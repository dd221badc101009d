//! The scene of a release: the device, the allocators on it, the owners, and what a host language
//! plugs in. Rungs are given it; they keep nothing of their own.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lowtide_device::{Bytes, Device};
use lowtide_pool::Pool;
use lowtide_types::{Ledger, LedgerKind, LedgerLine, Reading, Touch};

use crate::allocator::{Allocator, Counts};
use crate::climb::{climber, limited};
use crate::clock::Clock;
use crate::owners::Owners;
use crate::reading::{self, Gauge};
use crate::rung::Failure;

/// Where in a ladder something of a host language is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Models to the host's memory.
    ToHost,
    /// Sessions of inference runtimes closed.
    Sessions,
    /// Caches cleared, stored tracebacks dropped.
    Caches,
    /// The host language's collector.
    Collect,
    /// Workspaces of libraries, communicators, leftovers of other processes.
    Libraries,
    /// A context is destroyed and made anew.
    ContextReset,
    /// Whatever else there is when nothing has helped.
    Fallback,
}

/// How long a hook may take before it is left behind: less than its rung, so that the next hook is
/// still run.
const HOOK_LIMIT: Duration = Duration::from_secs(20);

type Run = dyn Fn(u32) -> Result<Vec<Touch>, Failure> + Send + Sync;
type Expect = dyn Fn() -> Option<Bytes> + Send + Sync;
type Missing = dyn Fn() -> Option<String> + Send + Sync;

/// Something of a host language that a rung calls.
pub struct Hook {
    name: String,
    expect: Option<Box<Expect>>,
    missing: Option<Box<Missing>>,
    limit: Duration,
    run: Box<Run>,
}

impl Hook {
    /// It is told which round of its rung this is, counted from 0: a collector may take another
    /// generation each time.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(u32) -> Result<Vec<Touch>, Failure> + Send + Sync + 'static,
    ) -> Hook {
        Hook {
            name: name.into(),
            expect: None,
            missing: None,
            limit: HOOK_LIMIT,
            run: Box::new(run),
        }
    }

    /// With another time limit. One that hangs is left behind there and named, and the next is run.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Hook {
        self.limit = limit;
        self
    }

    /// With what it expects to give back.
    #[must_use]
    pub fn expecting(mut self, expect: impl Fn() -> Option<Bytes> + Send + Sync + 'static) -> Hook {
        self.expect = Some(Box::new(expect));
        self
    }

    /// With why it does not apply now, asked each time: what it is for is not installed, or not in
    /// use. Then it is skipped by name, and nothing has failed.
    #[must_use]
    pub fn unless(mut self, missing: impl Fn() -> Option<String> + Send + Sync + 'static) -> Hook {
        self.missing = Some(Box::new(missing));
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Why it does not apply now, with its name.
    pub(crate) fn missing(&self) -> Option<String> {
        let why = self.missing.as_ref().and_then(|missing| missing())?;
        Some(format!("{}: {why}", self.name))
    }

    pub(crate) fn expected(&self) -> Option<Bytes> {
        self.expect.as_ref().and_then(|expect| expect())
    }

    /// Runs it no longer than its limit.
    pub(crate) fn run(self: &Arc<Hook>, scene: &Scene, round: u32) -> Result<Vec<Touch>, Failure> {
        let hook = Arc::clone(self);
        match limited(scene.clock(), self.limit, climber(), move || (hook.run)(round)) {
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => resume_unwind(panic),
            None => {
                let limit_ms = self.limit.as_millis();
                Err(format!("did not end within {limit_ms} ms and was left behind").into())
            }
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.name)
    }
}

/// Puts a setting back as it was.
pub type Restore = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// A setting that is lowered for a moment, such as the fraction of the device an allocator may take.
/// It always comes back: after an error, after a panic, and where the rung was cut off once it ends.
pub trait Setting: Send + Sync {
    /// Its name.
    fn name(&self) -> String;

    /// Lowers it; what is returned puts it back.
    ///
    /// # Errors
    /// Whoever has the setting.
    fn lower(&self) -> Result<Restore, Failure>;

    /// Resets the statistics that go with it, while it is lowered.
    ///
    /// # Errors
    /// Whoever has the setting.
    fn reset_statistics(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Memory that no allocator knows of: how much a library or captured graphs hold.
pub(crate) struct Account {
    kind: LedgerKind,
    name: String,
    bytes: Box<dyn Fn() -> Bytes + Send + Sync>,
}

/// While this lives, what it stands for is part of every release.
#[must_use = "dropping it takes it out again; `keep` leaves it in for good"]
pub struct Plugged {
    what: Arc<dyn Send + Sync>,
    kept: Weak<Mutex<Vec<Arc<dyn Send + Sync>>>>,
}

impl Plugged {
    /// Leaves it in for as long as the scene lives.
    pub fn keep(self) {
        if let Some(kept) = self.kept.upgrade() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(self.what);
        }
    }
}

impl fmt::Debug for Plugged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plugged")
    }
}

/// What a release works on.
pub struct Scene {
    gauge: Option<Arc<dyn Gauge>>,
    clock: Arc<dyn Clock>,
    floor: AtomicU64,
    disposable: AtomicBool,
    owners: Owners,
    pools: Mutex<Vec<Pool>>,
    allocators: Mutex<Vec<Weak<dyn Allocator>>>,
    hooks: Mutex<Vec<(Place, Weak<Hook>)>>,
    settings: Mutex<Vec<Weak<dyn Setting>>>,
    accounts: Mutex<Vec<Weak<Account>>>,
    kept: Arc<Mutex<Vec<Arc<dyn Send + Sync>>>>,
}

/// No floor is known.
const NO_FLOOR: u64 = u64::MAX;

impl Scene {
    pub(crate) fn new(gauge: Option<Arc<dyn Gauge>>, clock: Arc<dyn Clock>) -> Scene {
        Scene {
            gauge,
            clock,
            floor: AtomicU64::new(NO_FLOOR),
            disposable: AtomicBool::new(false),
            owners: Owners::default(),
            pools: Mutex::default(),
            allocators: Mutex::default(),
            hooks: Mutex::default(),
            settings: Mutex::default(),
            accounts: Mutex::default(),
            kept: Arc::default(),
        }
    }

    /// Who is asked what is in use; nobody, where there is no device.
    pub fn gauge(&self) -> Option<&dyn Gauge> {
        self.gauge.as_deref()
    }

    /// By how much the device's numbers move by themselves.
    pub(crate) fn noise(&self) -> Bytes {
        self.gauge().map_or(Bytes::ZERO, Gauge::noise)
    }

    /// The clock of this release.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// The owners that a release drops.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The pools that can sleep.
    pub fn pools(&self) -> Vec<Pool> {
        lock(&self.pools).clone()
    }

    /// What a bare context costs here, where that is known.
    pub fn floor(&self) -> Option<Bytes> {
        let floor = self.floor.load(SeqCst);
        (floor != NO_FLOOR).then_some(Bytes(floor))
    }

    /// Whether the process may lose everything on the device.
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
        lock(&self.pools).push(pool.clone());
    }

    pub(crate) fn plug_allocator(&self, allocator: Arc<dyn Allocator>) -> Plugged {
        lock(&self.allocators).push(Arc::downgrade(&allocator));
        self.plugged(Arc::new(allocator))
    }

    pub(crate) fn plug_hook(&self, place: Place, hook: Hook) -> Plugged {
        let hook = Arc::new(hook);
        lock(&self.hooks).push((place, Arc::downgrade(&hook)));
        self.plugged(hook)
    }

    pub(crate) fn plug_setting(&self, setting: Arc<dyn Setting>) -> Plugged {
        lock(&self.settings).push(Arc::downgrade(&setting));
        self.plugged(Arc::new(setting))
    }

    pub(crate) fn plug_account(
        &self,
        kind: LedgerKind,
        name: String,
        bytes: impl Fn() -> Bytes + Send + Sync + 'static,
    ) -> Plugged {
        let account = Arc::new(Account { kind, name, bytes: Box::new(bytes) });
        lock(&self.accounts).push(Arc::downgrade(&account));
        self.plugged(account)
    }

    fn plugged(&self, what: Arc<dyn Send + Sync>) -> Plugged {
        Plugged { what, kept: Arc::downgrade(&self.kept) }
    }

    /// Every allocator, the pools among them.
    pub fn allocators(&self) -> Vec<Arc<dyn Allocator>> {
        let pools = self.pools().into_iter().map(|pool| Arc::new(pool) as Arc<dyn Allocator>);
        pools.chain(alive(&self.allocators)).collect()
    }

    pub(crate) fn hooks(&self, place: Place) -> Vec<Arc<Hook>> {
        let mut hooks = lock(&self.hooks);
        hooks.retain(|(_, hook)| hook.strong_count() > 0);
        let here = hooks.iter().filter(|(at, _)| *at == place);
        here.filter_map(|(_, hook)| hook.upgrade()).collect()
    }

    pub(crate) fn settings(&self) -> Vec<Arc<dyn Setting>> {
        alive(&self.settings)
    }

    /// What the device and the allocators say right now.
    pub fn read(&self) -> Reading {
        let mut counts = Counts::default();
        for allocator in self.allocators() {
            let own = of_somebody(|| allocator.counts());
            counts.allocated += own.allocated;
            counts.reserved += own.reserved;
        }
        reading::take(self.gauge(), counts)
    }

    /// Where every byte in use is; `None` where the device cannot be asked.
    pub fn ledger(&self) -> Option<Ledger> {
        let gauge = self.gauge()?;
        let driver = gauge.usage().ok()?.in_use();
        let mut lines: Vec<LedgerLine> = {
            let allocators = self.allocators();
            allocators.iter().flat_map(|allocator| of_somebody(|| allocator.lines())).collect()
        };
        for account in alive(&self.accounts) {
            let (kind, name) = (account.kind, account.name.clone());
            lines.push(LedgerLine { kind, name, bytes: of_somebody(|| (account.bytes)()) });
        }
        if let Some(bytes) = self.floor() {
            lines.push(LedgerLine {
                kind: LedgerKind::Context,
                name: "bare context".to_owned(),
                bytes,
            });
        }
        let others = gauge.others().into_iter();
        lines.extend(others.map(|(name, bytes)| LedgerLine {
            kind: LedgerKind::Others,
            name,
            bytes,
        }));
        Some(Ledger::new(gauge.id(), driver, lines))
    }
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gauge() {
            Some(gauge) => write!(f, "Scene({})", gauge.id()),
            None => f.write_str("Scene(no device)"),
        }
    }
}

/// The floor of a device that needs no context.
pub(crate) fn floor_without_context(device: &Device) -> Option<Bytes> {
    let needs_context = matches!(device.info().id, lowtide_device::DeviceId::Cuda(_));
    (!needs_context).then_some(Bytes::ZERO)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What somebody else's code says; nothing where it panics, so that it costs no receipt: what it would
/// have told of is unknown then. Who panicked is told by the panic itself.
fn of_somebody<T: Default>(ask: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_default()
}

fn alive<T: ?Sized>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    let mut list = lock(list);
    list.retain(|one| one.strong_count() > 0);
    list.iter().filter_map(Weak::upgrade).collect()
}
