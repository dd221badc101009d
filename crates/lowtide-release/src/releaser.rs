//! The releaser: climbs a ladder on a scene and writes the receipt.
//!
//! One climbs at a time. Who asks for the same meanwhile waits and gets the same receipt. The gate is
//! closed for as long as it takes where the ladder begins with `quiesce`, so that nothing is pulled
//! from under work that runs. Who still waits for the gate keeps nobody from climbing: what it waits
//! for may be a task that cleans up after itself.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, Device};
use lowtide_pool::Pool;

use crate::advice::advise;
use crate::allocator::Allocator;
use crate::clock::Clock;
use crate::gate::{Gate, Mode};
use crate::ladder::{Ladder, Placed};
use crate::ledger::{Kind, Ledger};
use crate::owners::Owners;
use crate::reading::{Gauge, Reading, Settling, settled};
use crate::receipt::{Outcome, Receipt, RungReceipt, Verdict};
use crate::rung::{Climbed, Expectation, Failure, Rung, message};
use crate::scene::{Hook, Place, Plugged, Scene, Setting, floor_without_context};
use crate::target::Target;

/// What to do where work is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Nothing: the verdict is `busy`.
    Refuse,
    /// Wait for it so long, then refuse. New work waits meanwhile.
    Wait(Duration),
}

/// What is wanted of a release.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it is for, in the receipt.
    pub name: String,
    /// How.
    pub ladder: Ladder,
    /// When it is enough; every rung once, where there is none.
    pub to: Option<Target>,
    /// Where work is running.
    pub when_busy: WhenBusy,
    /// Whether rungs are climbed though the target is met.
    pub every_rung: bool,
    /// Whether whoever asks writes the log line.
    pub(crate) quiet: bool,
    /// What was done before the release began, and belongs to it.
    pub(crate) done: Option<RungReceipt>,
}

impl Ask {
    /// A release by a ladder, without a target, that waits up to a minute for running work.
    pub fn new(name: impl Into<String>, ladder: Ladder) -> Ask {
        let when_busy = WhenBusy::Wait(Duration::from_secs(60));
        Ask {
            name: name.into(),
            ladder,
            to: None,
            when_busy,
            every_rung: false,
            quiet: false,
            done: None,
        }
    }

    /// Until this is met.
    #[must_use]
    pub fn to(mut self, target: Target) -> Ask {
        self.to = Some(target);
        self
    }

    /// Refusing at once where work is running.
    #[must_use]
    pub fn or_refuse(mut self) -> Ask {
        self.when_busy = WhenBusy::Refuse;
        self
    }

    /// Climbing every rung once, though the target may be met before.
    #[must_use]
    pub fn every_rung(mut self) -> Ask {
        self.every_rung = true;
        self
    }

    pub(crate) fn quiet(mut self) -> Ask {
        self.quiet = true;
        self
    }

    pub(crate) fn after(mut self, done: RungReceipt) -> Ask {
        self.done = Some(done);
        self
    }

    // Whether two ask for the same.
    fn is_like(&self, other: &Ask) -> bool {
        let is_whole = self.done.is_none() && other.done.is_none();
        is_whole
            && (self.to, self.every_rung) == (other.to, other.every_rung)
            && self.ladder.names() == other.ladder.names()
    }
}

thread_local! {
    /// Whose rung this thread is climbing, by the address of its inside; zero where it is not.
    static CLIMBING: Cell<usize> = const { Cell::new(0) };
}

/// A part of a rung, for another thread: a release that it asks for is refused there too.
pub(crate) fn as_part_of_the_climb(
    part: impl FnOnce() + Send + 'static,
) -> Box<dyn FnOnce() + Send> {
    let climbing = CLIMBING.get();
    Box::new(move || {
        let before = CLIMBING.replace(climbing);
        part();
        CLIMBING.set(before);
    })
}

/// Gives memory back on one device, and proves it. Cheap to clone.
#[derive(Clone)]
pub struct Releaser {
    inner: Arc<Inner>,
}

struct Inner {
    scene: Arc<Scene>,
    gate: Gate,
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
        kind: Kind,
        name: impl Into<String>,
        bytes: impl Fn() -> Bytes + Send + Sync + 'static,
    ) -> Plugged {
        self.inner.scene.plug_account(kind, name.into(), bytes)
    }

    /// With a rung of your own in the place of the one of the same name, in every ladder.
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
        if CLIMBING.get() == Arc::as_ptr(&self.inner).addr() {
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
        log(&receipt);
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
    fn replaced(&self) -> MutexGuard<'_, Vec<Arc<dyn Rung>>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flights(&self) -> MutexGuard<'_, Vec<Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The rung itself, or what was put in its place.
    fn placed(&self, placed: &Placed) -> Placed {
        let replaced = self.replaced();
        let other = replaced.iter().find(|rung| rung.name() == placed.rung.name());
        other.map_or_else(|| placed.clone(), |rung| Placed { rung: Arc::clone(rung), ..*placed })
    }

    fn closed_climb(&self, ask: &Ask) -> Receipt {
        if self.scene.gauge().is_none() {
            let reading = self.scene.read();
            return self.receipt(ask, Verdict::NoDevice, (reading, reading), Vec::new(), "");
        }
        if !ask.ladder.has("quiesce") {
            let _turn = self.turn();
            return self.climb(ask);
        }
        // Another release has the gate closed, but it is no work: its end is waited for.
        drop(self.turn());
        let closed = match ask.when_busy {
            WhenBusy::Refuse => self.gate.try_close(Mode::Drain),
            WhenBusy::Wait(limit) => self.gate.close_within(Mode::Drain, self.scene.clock(), limit),
        };
        match closed {
            Ok(_closed) => {
                let _turn = self.turn();
                let mut receipt = self.climb(ask);
                // What the rungs gave to the device is done when the gate opens.
                if let Some(Err(error)) = self.scene.gauge().map(Gauge::synchronize) {
                    receipt.advice.push(format!("the device could not be waited for: {error}"));
                }
                receipt
            }
            Err(busy) => {
                let reading = self.scene.read();
                let why = format!(
                    "{busy}; nothing was touched: try again when that is over, or wait longer"
                );
                self.receipt(ask, Verdict::Busy, (reading, reading), Vec::new(), &why)
            }
        }
    }

    fn climb(&self, ask: &Ask) -> Receipt {
        let (clock, began) = (self.scene.clock(), self.scene.clock().now());
        let (mut last, mut settling) = settled(clock, || self.scene.read());
        let before = ask.done.as_ref().map_or(last, |done| done.before);
        let mut rungs: Vec<RungReceipt> = ask.done.iter().cloned().collect();
        let is_met =
            |reading: &Reading| ask.to.and_then(|to| to.is_met(reading, self.scene.floor()));
        'attempts: for attempt in 1..=ask.ladder.most_attempts() {
            let at_its_start = last;
            for placed in ask.ladder.rungs() {
                if !ask.every_rung && is_met(&last) == Some(true) {
                    break 'attempts;
                }
                let rung = self.climb_rung(&self.placed(placed), attempt, last);
                last = rung.after;
                // A rung that was skipped has read nothing.
                if !matches!(rung.outcome, Outcome::Skipped { .. }) {
                    settling = rung.settling;
                }
                rungs.push(rung);
            }
            if ask.to.is_none()
                || is_met(&last) == Some(true)
                || last.freed_since(&at_its_start).is_none_or(|freed| freed <= 0)
            {
                break;
            }
        }
        let holders = self.scene.owners().holders();
        let verdict = judge(&Judged {
            reached: match (ask.to, is_met(&last)) {
                (None, _) => Reached::None,
                (Some(_), Some(true)) => Reached::Met,
                (Some(_), Some(false)) => Reached::Missed,
                (Some(_), None) => Reached::Unknown,
            },
            freed: last.freed_since(&before),
            is_held: !holders.is_empty(),
            rungs: &rungs,
        });
        let mut receipt = self.receipt(ask, verdict, (before, last), rungs, "");
        receipt.holders = holders;
        receipt.took_s = clock.since(began).as_secs_f64();
        if settling == Settling::Falling {
            receipt.advice.push("the number was still falling: ask again in a moment".to_owned());
        }
        receipt.advice.extend(advise(&receipt));
        receipt
    }

    fn climb_rung(&self, placed: &Placed, attempt: u32, before: Reading) -> RungReceipt {
        let (rung, clock) = (&placed.rung, self.scene.clock());
        let receipt = RungReceipt {
            rung: rung.name().to_owned(),
            attempt,
            outcome: Outcome::Done,
            touched: Vec::new(),
            expected_bytes: None,
            before,
            after: before,
            freed_bytes: Some(0),
            settling: Settling::Steady,
            took_s: 0.0,
        };
        let expected_bytes = match catch_unwind(AssertUnwindSafe(|| rung.expect(&self.scene))) {
            Ok(Expectation::Bytes(bytes)) => bytes,
            Ok(Expectation::Skip(why)) => {
                return RungReceipt { outcome: Outcome::Skipped { why }, ..receipt };
            }
            Err(panic) => {
                let outcome = Outcome::Panicked { message: message(&*panic) };
                return RungReceipt { outcome, ..receipt };
            }
        };
        let began = clock.now();
        let (outcome, touched) = self.work(placed);
        let took_s = clock.since(began).as_secs_f64();
        let (after, settling) = settled(clock, || self.scene.read());
        let freed_bytes = after.freed_since(&before);
        RungReceipt {
            outcome,
            touched,
            expected_bytes,
            after,
            freed_bytes,
            settling,
            took_s,
            ..receipt
        }
    }

    // In its own thread, where the clock has one, so that it can be left behind.
    fn work(&self, placed: &Placed) -> (Outcome, Vec<crate::rung::Touch>) {
        type Ended = thread::Result<Result<Climbed, Failure>>;
        let ended: Arc<Mutex<Option<Ended>>> = Arc::default();
        let (rung, scene, said) =
            (Arc::clone(&placed.rung), Arc::clone(&self.scene), Arc::clone(&ended));
        let own = std::ptr::from_ref(self).addr();
        let work = move || {
            let before = CLIMBING.replace(own);
            let outcome = catch_unwind(AssertUnwindSafe(|| rung.climb(&scene)));
            CLIMBING.set(before);
            *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let in_time = self.scene.clock().within(placed.limit, Box::new(work));
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ended.filter(|_| in_time) {
            None => {
                let limit_ms = placed.limit.as_millis() as u64;
                (Outcome::CutOff { limit_ms }, Vec::new())
            }
            Some(Err(panic)) => (Outcome::Panicked { message: message(&*panic) }, Vec::new()),
            Some(Ok(Err(failure))) => (Outcome::Failed { why: failure.to_string() }, Vec::new()),
            Some(Ok(Ok(Climbed { touched, failures }))) if failures.is_empty() => {
                (Outcome::Done, touched)
            }
            Some(Ok(Ok(Climbed { touched, failures }))) => {
                (Outcome::Failed { why: failures.join("; ") }, touched)
            }
        }
    }

    fn receipt(
        &self,
        ask: &Ask,
        verdict: Verdict,
        (before, after): (Reading, Reading),
        rungs: Vec<RungReceipt>,
        advice: &str,
    ) -> Receipt {
        Receipt {
            name: ask.name.clone(),
            device: self.scene.gauge().map(Gauge::id),
            target: ask.to,
            verdict,
            before,
            after,
            freed_bytes: after.freed_since(&before),
            rungs,
            holders: Vec::new(),
            ledger: self.scene.ledger(),
            advice: (!advice.is_empty()).then(|| advice.to_owned()).into_iter().collect(),
            took_s: 0.0,
        }
    }
}

/// What a verdict is made of.
struct Judged<'a> {
    reached: Reached,
    freed: Option<i64>,
    is_held: bool,
    rungs: &'a [RungReceipt],
}

/// Whether there is a target, and whether it is met.
#[derive(Clone, Copy)]
enum Reached {
    None,
    Met,
    Missed,
    /// There is no number to judge it by.
    Unknown,
}

fn judge(judged: &Judged<'_>) -> Verdict {
    let Some(freed) = judged.freed else { return Verdict::Unverified };
    match judged.reached {
        Reached::Unknown => return Verdict::Unverified,
        Reached::Met => return Verdict::Released,
        _ if judged.is_held => return Verdict::Pinned,
        Reached::Missed if freed > 0 => return Verdict::Partial,
        Reached::None if freed > 0 => return Verdict::Released,
        _ => {}
    }
    let mut climbed =
        judged.rungs.iter().filter(|rung| !matches!(rung.outcome, Outcome::Skipped { .. }));
    let did = |rung: &RungReceipt| rung.outcome == Outcome::Done && rung.rung != "quiesce";
    let any_failed = climbed.clone().any(|rung| rung.outcome != Outcome::Done);
    if any_failed && !climbed.any(did) { Verdict::Failed } else { Verdict::NoEffect }
}

fn log(receipt: &Receipt) {
    for rung in &receipt.rungs {
        tracing::debug!(rung = rung.rung, "{rung}");
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
