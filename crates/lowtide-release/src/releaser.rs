//! The releaser: what people hold, and who climbs when.
//!
//! One climbs at a time. Who asks for the same meanwhile waits and gets the same receipt. The gate is
//! closed for as long as it takes, unless every rung lets work go on, so that nothing is pulled
//! from under work that runs. Who still waits for the gate keeps nobody from climbing: what it waits
//! for may be a task that cleans up after itself.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use lowtide_device::{Bytes, Device};
use lowtide_pool::Pool;
use lowtide_types::{Ledger, LedgerKind, Receipt, Verdict};

use crate::allocator::Allocator;
use crate::ask::Ask;
use crate::climb::climber;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::ladder::Ladder;
use crate::owners::Owners;
use crate::reading::Gauge;
use crate::rung::Rung;
use crate::scene::{Hook, Place, Plugged, Scene, Setting, floor_without_context};

/// Gives memory back on one device, and proves it. Cheap to clone.
#[derive(Clone)]
pub struct Releaser {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) scene: Arc<Scene>,
    pub(crate) gate: Gate,
    /// Rungs that take the place of those of the same name, in every ladder.
    replaced: Mutex<Vec<Arc<dyn Rung>>>,
    /// What was asked for and has not ended: it climbs, or waits for the gate or its turn.
    flights: Mutex<Vec<Arc<Flight>>>,
    landed: Condvar,
    /// Held by who climbs.
    turn: Mutex<()>,
}

/// A release, for who asks for the same.
struct Flight {
    ask: Ask,
    /// Once it has ended; never, where it panicked.
    receipt: OnceLock<Arc<Receipt>>,
}

impl Releaser {
    /// On this device.
    pub fn new(device: &Device, clock: Arc<dyn Clock>) -> Releaser {
        let releaser = Releaser::with_gauge(Some(Arc::new(device.clone())), clock);
        if let Some(floor) = floor_without_context(device) {
            releaser.set_floor(floor);
        }
        releaser
    }

    /// Where there is no device: every receipt says `no-device` and nothing is done.
    pub fn without_device(clock: Arc<dyn Clock>) -> Releaser {
        Releaser::with_gauge(None, clock)
    }

    /// With somebody else who knows what is in use, or nobody.
    pub fn with_gauge(gauge: Option<Arc<dyn Gauge>>, clock: Arc<dyn Clock>) -> Releaser {
        let scene = Arc::new(Scene::new(gauge, clock));
        let inner = Inner {
            scene,
            gate: Gate::default(),
            replaced: Mutex::default(),
            flights: Mutex::default(),
            landed: Condvar::new(),
            turn: Mutex::default(),
        };
        Releaser { inner: Arc::new(inner) }
    }

    /// What it works on.
    pub fn scene(&self) -> &Scene {
        &self.inner.scene
    }

    /// The gate that work passes and releases close.
    pub fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Who owns what.
    pub fn owners(&self) -> &Owners {
        self.inner.scene.owners()
    }

    /// What a bare context costs here (`lowtide doctor` measures it).
    pub fn set_floor(&self, floor: Bytes) {
        self.inner.scene.set_floor(floor);
    }

    /// Says that the process may lose everything on the device, so that a context may be reset.
    pub fn set_disposable(&self, disposable: bool) {
        self.inner.scene.set_disposable(disposable);
    }

    /// With a pool, which is trimmed and can sleep.
    pub fn add_pool(&self, pool: &Pool) {
        self.inner.scene.add_pool(pool);
    }

    /// With another allocator, which is trimmed and counted.
    pub fn plug_allocator(&self, allocator: Arc<dyn Allocator>) -> Plugged {
        self.inner.scene.plug_allocator(allocator)
    }

    /// With something of a host language at one place of the ladder.
    pub fn plug(&self, place: Place, hook: Hook) -> Plugged {
        self.inner.scene.plug_hook(place, hook)
    }

    /// With a setting that a rung lowers and restores.
    pub fn plug_setting(&self, setting: Arc<dyn Setting>) -> Plugged {
        self.inner.scene.plug_setting(setting)
    }

    /// With memory that no allocator knows of, for the ledger.
    pub fn account(
        &self,
        kind: LedgerKind,
        name: impl Into<String>,
        bytes: impl Fn() -> Bytes + Send + Sync + 'static,
    ) -> Plugged {
        self.inner.scene.plug_account(kind, name.into(), bytes)
    }

    /// With a rung of your own in the place of the one of the same name, in every ladder. Whether the
    /// gate is closed is still the other's to say.
    pub fn replace(&self, rung: Arc<dyn Rung>) {
        let mut replaced = self.inner.replaced();
        replaced.retain(|known| known.name() != rung.name());
        replaced.push(rung);
    }

    /// Where every byte in use is; `None` where there is no device or it cannot be asked.
    pub fn ledger(&self) -> Option<Ledger> {
        self.inner.scene.ledger()
    }

    /// Gives cached memory back to the driver: collect, then trim. Nothing that runs is touched.
    pub fn empty_cache(&self) -> Arc<Receipt> {
        self.release(Ask::new("empty cache", Ladder::cache()))
    }

    /// Drops every owner, wrappers first, and gives what that freed back to the driver.
    pub fn shutdown(&self) -> Arc<Receipt> {
        self.release(Ask::new("shutdown", Ladder::shutdown()))
    }

    /// Climbs a ladder until the target is met, and says what that did.
    pub fn release(&self, ask: Ask) -> Arc<Receipt> {
        // A rung that asks for a release would wait for itself.
        if climber() == Arc::as_ptr(&self.inner).addr() {
            return Arc::new(self.refused(&ask));
        }
        let mut flights = self.inner.flights();
        while let Some(same) = flights.iter().find(|flight| flight.ask.is_like(&ask)).cloned() {
            while flights.iter().any(|flight| Arc::ptr_eq(flight, &same)) {
                flights = self.inner.landed.wait(flights).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(receipt) = same.receipt.get() {
                return Arc::clone(receipt);
            }
        }
        let flight = Arc::new(Flight { ask, receipt: OnceLock::new() });
        flights.push(Arc::clone(&flight));
        drop(flights);
        let landing = Landing { inner: &self.inner, flight: &flight };
        let receipt = Arc::new(self.inner.closed_climb(&flight.ask));
        let receipt = Arc::clone(flight.receipt.get_or_init(|| receipt));
        drop(landing);
        if !flight.ask.quiet {
            log(&receipt);
        }
        receipt
    }

    fn refused(&self, ask: &Ask) -> Receipt {
        let reading = self.inner.scene.read();
        let why = "a release asked for another one; what it does is part of it already";
        self.inner.receipt(ask, Verdict::Busy, (reading, reading), Vec::new(), why)
    }
}

impl fmt::Debug for Releaser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Releaser({:?})", self.inner.scene)
    }
}

/// Ends the flight, also where a climb panicked.
struct Landing<'a> {
    inner: &'a Inner,
    flight: &'a Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.inner.flights().retain(|flight| !Arc::ptr_eq(flight, self.flight));
        self.inner.landed.notify_all();
    }
}

impl Inner {
    pub(crate) fn replaced(&self) -> MutexGuard<'_, Vec<Arc<dyn Rung>>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flights(&self) -> MutexGuard<'_, Vec<Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(receipt: &Receipt) {
    for rung in &receipt.rungs {
        tracing::debug!(rung = rung.rung.as_str(), "{rung}");
    }
    let line = receipt.line();
    let missed = receipt.target.is_some() && !receipt.verdict.is_proved();
    if missed || matches!(receipt.verdict, Verdict::Pinned | Verdict::Failed) {
        let (left, advice) = (receipt.after.in_use(), receipt.advice.join("; "));
        tracing::warn!(verdict = %receipt.verdict, ?left, "{line}: {advice}");
    } else {
        tracing::info!(verdict = %receipt.verdict, "{line}");
    }
}
