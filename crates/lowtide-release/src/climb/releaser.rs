//! The releaser: the handle that callers have, and the order in which releases run.
//!
//! One release climbs at a time. A caller that asks for the same release meanwhile waits and gets the
//! same receipt. The gate is closed for as long as the climb takes, unless every rung lets work go
//! on, so that no memory is taken from running work. A release that still waits for the gate does not
//! keep others from climbing: the work that it waits for may clean up after itself.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use lowtide_device::{Device, tallies};
use lowtide_pool::Pool;
use lowtide_types::{Bytes, DeviceId, Ledger, LedgerKind, Reading, Receipt, Verdict, debug_as};

use super::advice::advise;
use super::climber::{Climber, Replaced, receipt};
use super::collected::Collected;
use super::log;
use super::request::{Request, WhenBusy};
use super::restore::{RestoreError, Restored, restore};
use super::same::Flights;
use crate::callbacks::{Climb, Hook, HookPoint, LeftBehind, Origin, Registration, Setting};
use crate::clock::Clock;
use crate::gate::{Busy, Closed, Gate, Mode, OwnedPass};
use crate::owners::Owners;
use crate::readings::{Allocator, Doing, Gauge, Inventory};
use crate::rungs::{Ladder, Rung};
use crate::sync::unpoisoned;

/// Frees memory on one device and verifies the result with the device's own numbers. Cheap to clone;
/// clones are the same releaser.
///
/// A releaser that a forked child inherited belongs to the parent. Every release of it returns a receipt
/// with the verdict `failed` and says so; it asks neither the device nor anything that is registered, and
/// what is registered with it then is forgotten. A new releaser works.
#[derive(Clone)]
pub struct Releaser {
    inner: Arc<Inner>,
    clock: Arc<dyn Clock>,
}

struct Inner {
    /// Its address is the identity of this releaser.
    identity: Arc<()>,
    inventory: Arc<Inventory>,
    gate: Gate,
    replaced: Mutex<Vec<Replaced>>,
    flights: Flights,
    /// What the last full collection left.
    collected: Mutex<Option<Collected>>,
    /// Held by the release that climbs.
    turn: Mutex<()>,
    /// Parts of releases that still run after their limit.
    left_behind: Arc<LeftBehind>,
    /// The gate that such parts keep closed.
    kept_closed: Mutex<Weak<Closed>>,
}

impl Releaser {
    /// Creates a releaser for `device`.
    pub fn new(device: &Device, clock: Arc<dyn Clock>) -> Releaser {
        let releaser = Releaser::with_gauge(Some(Arc::new(device.clone())), clock);
        if !matches!(device.info().id, DeviceId::Cuda(_)) {
            // It needs no context, so nothing is used before the first allocation.
            releaser.set_floor(Bytes::ZERO);
        }
        releaser
    }

    /// Creates a releaser without a device: every release does nothing, with the verdict `no-device`.
    pub fn without_device(clock: Arc<dyn Clock>) -> Releaser {
        Releaser::with_gauge(None, clock)
    }

    /// Creates a releaser whose numbers come from a gauge of the caller's own.
    pub fn with_gauge(gauge: Option<Arc<dyn Gauge>>, clock: Arc<dyn Clock>) -> Releaser {
        let inner = Inner {
            identity: Arc::new(()),
            inventory: Arc::new(Inventory::new(gauge)),
            gate: Gate::default(),
            replaced: Mutex::default(),
            flights: Flights::default(),
            collected: Mutex::default(),
            turn: Mutex::default(),
            left_behind: Arc::default(),
            kept_closed: Mutex::default(),
        };
        Releaser { inner: Arc::new(inner), clock }
    }

    /// Returns the same releaser with another clock for the waits and limits of its caller. A host
    /// language that can interrupt one call gives each call a clock of its own.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Releaser {
        Releaser { inner: Arc::clone(&self.inner), clock }
    }

    /// Returns whether the releaser belongs to the parent process: a forked child inherited it.
    pub fn is_inherited(&self) -> bool {
        self.inner.inventory.is_inherited()
    }

    /// Returns the clock that this handle waits by.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Reads the clock; zero in a forked child, whose parent's threads may hold a lock of the clock's.
    pub(crate) fn now(&self) -> Duration {
        if self.is_inherited() { Duration::ZERO } else { self.clock.now() }
    }

    /// Returns the device, the allocators, the owners and the hooks that a release works with.
    pub fn inventory(&self) -> &Inventory {
        &self.inner.inventory
    }

    /// Returns the gate that work passes and releases close.
    pub fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Returns the registry of owners.
    pub fn owners(&self) -> &Owners {
        self.inner.inventory.owners()
    }

    /// Sets the floor of the device (`lowtide doctor` measures it).
    pub fn set_floor(&self, floor: Bytes) {
        self.inner.inventory.set_floor(floor);
    }

    /// Says whether the process may lose everything that it has on the device, so that its context
    /// may be reset.
    pub fn set_disposable(&self, disposable: bool) {
        self.inner.inventory.set_disposable(disposable);
    }

    /// Adds a pool. Releases trim it and put it to sleep.
    pub fn add_pool(&self, pool: &Pool) {
        self.inner.inventory.add_pool(pool);
    }

    /// Adds another allocator. Releases trim it, and its numbers count.
    pub fn add_allocator(&self, allocator: Arc<dyn Allocator>) -> Registration {
        self.inner.inventory.add_allocator(allocator)
    }

    /// Adds a hook of a host language at one point of the ladder.
    pub fn add_hook(&self, point: HookPoint, hook: Hook) -> Registration {
        self.inner.inventory.add_hook(point, hook)
    }

    /// Adds a setting that the rung `fraction` lowers and restores.
    pub fn add_setting(&self, setting: Arc<dyn Setting>) -> Registration {
        self.inner.inventory.add_setting(setting)
    }

    /// Adds a line to the ledger for memory that no allocator knows of.
    pub fn add_account(
        &self,
        kind: LedgerKind,
        name: impl Into<String>,
        bytes: impl Fn() -> Bytes + Send + Sync + 'static,
    ) -> Registration {
        self.inner.inventory.add_account(kind, name.into(), bytes)
    }

    /// Puts a rung in the place of the one of the same name, in every ladder. Whether the gate is
    /// closed, and the time limit, remain those of the rung that it replaces.
    pub fn replace_rung(&self, rung: Arc<dyn Rung>) {
        if self.is_inherited() {
            return;
        }
        let name = rung.name();
        let mut replaced = self.inner.replaced();
        let (before, mut all): (Vec<_>, Vec<_>) =
            replaced.drain(..).partition(|known| known.name == name);
        all.push(Replaced { name, rung });
        *replaced = all;
        drop(replaced);
        drop(before);
    }

    /// Returns a breakdown of all device memory in use; `None` where there is no device or it cannot
    /// be asked.
    pub fn ledger(&self) -> Option<Ledger> {
        self.inner.inventory.ledger()
    }

    /// Returns cached memory to the driver: collects, in full only where needed
    /// ([`Request::by_need`]), then trims. Running work is not touched.
    pub fn empty_cache(&self) -> Receipt {
        self.release(Request::new("empty cache", Ladder::cache()).by_need())
    }

    /// Drops every owner, wrappers first, and returns what that freed to the driver.
    ///
    /// It claims everything that the owners measure or the allocators have, because a block may be any owner's,
    /// and so does the next one: a block that nobody drops makes the first `partial` and the next `no-effect`, a
    /// reference that holds what was dropped makes each `pinned`. A releaser that never had an owner claims its
    /// cache.
    pub fn shutdown(&self) -> Receipt {
        self.release(Request::new("shutdown", Ladder::shutdown()))
    }

    /// Begins work: enters the gate, and brings back what releases took off the device: pools wake,
    /// then the hooks at each point restore what they moved ([`Hook::restored_by`]). Waits while the gate
    /// is closed. If several callers come at once, one restores and the others wait for it.
    ///
    /// # Errors
    /// If something could not be brought back. The work has not begun then, and the next caller tries
    /// again. In a forked child that inherited the releaser.
    #[track_caller]
    pub fn enter(&self) -> Result<(OwnedPass, Option<Restored>), RestoreError> {
        if self.is_inherited() {
            return Err(lowtide_pool::Error::from(lowtide_device::Error::Forked).into());
        }
        let mut restored = None;
        let wake = || {
            restored = restore(self.inventory(), self.clock())?;
            Ok::<_, RestoreError>(())
        };
        let pass = self.gate().enter_awake(wake)?.into_owned();
        Ok((pass, restored))
    }

    /// Brings back what releases took off the device, as [`Releaser::enter`], for a program that does
    /// not pass the gate. Returns `None` if there was nothing to bring back.
    ///
    /// # Errors
    /// As [`Releaser::enter`].
    pub fn restore(&self) -> Result<Option<Restored>, RestoreError> {
        self.enter().map(|(_pass, restored)| restored)
    }

    /// Climbs a ladder until the target is met. Returns the receipt.
    ///
    /// Code that a release runs, such as a rung, a hook, a clock or a `Drop`, is refused with the verdict
    /// `busy`: it would wait for itself. It is recognised by [`Request::within`], or else by its
    /// thread. On another thread and without `within`, the call waits for the release that it is part
    /// of, until the time limit of its rung. A gauge, an allocator or an account that is being asked for
    /// its number is refused without any numbers in the receipt.
    ///
    /// A thread that holds a [pass](crate::Pass) is refused too, unless every rung lets work go on.
    pub fn release(&self, request: Request) -> Receipt {
        if self.is_inherited() {
            return request.refused_in_child();
        }
        let inner = &*self.inner;
        if inner.is_asked_by_its_own_release(&request) {
            let why =
                "a part of this release asked for another one: its effect is part of this one";
            return inner.busy(&request, why);
        }
        // Until the receipt is in the log, which may have code of the caller, too.
        let _releasing = inner.inventory.mark(Doing::Releasing);
        // Before it waits for anybody: who waits for the gate waits for this thread.
        if let Some(busy) = inner.waits_for_itself(&request) {
            return inner.busy_gate(&request, &busy);
        }
        let flying = match inner.flights.begin(request) {
            Ok(flying) => flying,
            Err(receipt) => return Arc::unwrap_or_clone(receipt),
        };
        let receipt = self.climb_in_time(flying.request());
        let (receipt, logging) = flying.land(receipt);
        log::write(&receipt, logging);
        tallies::receipt(&receipt);
        Arc::unwrap_or_clone(receipt)
    }

    fn climb_in_time(&self, request: &Request) -> Receipt {
        let began = self.clock.now();
        let mut receipt = self.climb_or_refuse(request);
        self.inventory().recount();
        receipt.took_s = (self.clock.since(began) + request.planned).as_secs_f64();
        receipt
    }

    /// Climbs, with the gate closed unless every rung lets work go on.
    fn climb_or_refuse(&self, request: &Request) -> Receipt {
        let inner = &*self.inner;
        let Some(gauge) = inner.inventory.gauge() else {
            let reading = inner.inventory.read();
            let mut receipt =
                receipt(&inner.inventory, request, Verdict::NoDevice, (reading, reading));
            receipt.advice = advise(&receipt);
            return receipt;
        };
        if request.ladder.lets_work_go_on() {
            let _turn = inner.turn();
            inner.inventory.recount();
            // A pause has the gate closed and waits for this release: so does every hook of it.
            let closes = inner.gate.is_inside().then_some(&inner.gate);
            let mut receipt = self.climb_by_need(request, closes);
            receipt.advice.extend(inner.left_behind.advice());
            return receipt;
        }
        // Another release has the gate closed, but it is not work: wait for its end.
        drop(inner.turn());
        // A part that was left behind keeps the gate closed, with no work in it: share that.
        let kept = inner.kept_closed().upgrade();
        let closed = kept.map_or_else(|| self.close_gate(request).map(Arc::new), Ok);
        let closed = match closed {
            Ok(closed) => closed,
            Err(busy) => return inner.busy_gate(request, &busy),
        };
        let _turn = inner.turn();
        inner.inventory.recount();
        if inner.inventory.may_sleep() {
            // Before the climb, because a sleep that is left behind goes on after it.
            closed.mark_asleep();
        }
        let mut receipt = self.climb(request, Some(&inner.gate));
        // Work that the rungs gave to the device has ended when the gate opens. A process that has left the
        // device has none.
        if !gauge.is_away()
            && let Err(error) = gauge.synchronize()
        {
            receipt.advice.push(format!("the device could not be waited for: {error}"));
        }
        inner.keep_closed(&closed);
        receipt.advice.extend(inner.left_behind.advice());
        receipt
    }

    fn close_gate(&self, request: &Request) -> Result<Closed, Busy> {
        let gate = &self.inner.gate;
        match request.when_busy {
            WhenBusy::Refuse => gate.try_close(Mode::Drain),
            WhenBusy::Wait(limit) => gate.close_within(Mode::Drain, self.clock(), limit),
        }
    }

    pub(crate) fn climb(&self, request: &Request, closes: Option<&Gate>) -> Receipt {
        let receipt = self.climb_or_rest(request, closes, None);
        let inventory = self.inventory();
        if let Some(collected) = Collected::by(request, &receipt, inventory, self.clock.now()) {
            self.set_collected(collected);
        }
        receipt
    }

    /// Climbs no rung, for this reason. The numbers are those of a reading.
    pub(crate) fn rest(&self, request: &Request, why: &str, now: Reading) -> Receipt {
        self.climb_or_rest(request, None, Some((why, now)))
    }

    fn climb_or_rest(
        &self,
        request: &Request,
        closes: Option<&Gate>,
        resting: Option<(&str, Reading)>,
    ) -> Receipt {
        let Inner { identity: releaser, inventory, left_behind, .. } = &*self.inner;
        let origin = Origin { releaser, left_behind, closes, within: request.within.as_ref() };
        let (clock, go_on) = (Arc::clone(&self.clock), request.go_on.clone());
        let (climb, _under_way) = Climb::begin(clock, go_on, &origin);
        let replaced = self.inner.replaced().clone();
        let climber = Climber { inventory, request, climb: &climb, replaced: &replaced };
        resting.map_or_else(|| climber.run(), |(why, now)| climber.rest(why, now))
    }

    /// Returns what the last full collection left.
    pub(crate) fn collected(&self) -> Option<Collected> {
        unpoisoned(self.inner.collected.lock()).clone()
    }

    pub(crate) fn set_collected(&self, collected: Collected) {
        *unpoisoned(self.inner.collected.lock()) = Some(collected);
    }
}

debug_as!(Releaser, |it| "Releaser({:?})", it.inner.inventory);

impl Inner {
    /// Whether a part of a release of this releaser asks, or of a release that it asked for.
    fn is_asked_by_its_own_release(&self, request: &Request) -> bool {
        let is_own = |climb: &Climb| climb.is_climb_of(&self.identity);
        request.within.as_ref().is_some_and(is_own)
            || Climb::here().as_ref().is_some_and(is_own)
            || self.inventory.is_doing(Doing::Releasing)
            || self.is_asking_here()
    }

    /// Whether this thread asks for the numbers of a receipt or of the ledger.
    fn is_asking_here(&self) -> bool {
        self.inventory.is_doing(Doing::Refusing) || self.inventory.is_doing(Doing::Asking)
    }

    /// Returns a refusal if the release needs the gate closed and would wait for this thread.
    fn waits_for_itself(&self, request: &Request) -> Option<Busy> {
        let needs_gate = self.inventory.gauge().is_some() && !request.ladder.lets_work_go_on();
        // A gate that a part keeps closed, which was left behind, is shared.
        let is_kept = self.kept_closed().strong_count() > 0;
        if needs_gate && !is_kept { self.gate.waits_for_itself() } else { None }
    }

    /// Keeps the gate closed while parts run that were left behind.
    fn keep_closed(&self, closed: &Arc<Closed>) {
        let taking = self.left_behind.taking();
        let is_kept = taking.iter().filter(|part| part.keep(closed)).count() > 0;
        if is_kept {
            *self.kept_closed() = Arc::downgrade(closed);
        }
    }

    /// Refuses a release that could not close the gate.
    fn busy_gate(&self, request: &Request, busy: &Busy) -> Receipt {
        let next = if busy.own {
            "ask on a thread that does not, or end that work first"
        } else {
            "try again when that has ended, or wait longer"
        };
        self.busy(request, &format!("nothing was touched: {busy}; {next}"))
    }

    fn busy(&self, request: &Request, why: &str) -> Receipt {
        if self.is_asking_here() {
            return request.refused_while_asked();
        }
        let _refusing = self.inventory.mark(Doing::Refusing);
        let reading = self.inventory.read();
        let mut receipt = receipt(&self.inventory, request, Verdict::Busy, (reading, reading));
        receipt.advice.push(why.to_owned());
        receipt
    }

    fn replaced(&self) -> MutexGuard<'_, Vec<Replaced>> {
        unpoisoned(self.replaced.lock())
    }

    fn kept_closed(&self) -> MutexGuard<'_, Weak<Closed>> {
        unpoisoned(self.kept_closed.lock())
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.turn.lock())
    }
}
