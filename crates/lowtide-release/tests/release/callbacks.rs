//! Code of a caller that comes back to the releaser, or to the gate, that called it: each call has a
//! defined answer, and nobody waits for itself or goes on without end (docs/decisions/0007-releases.md).

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, DeviceId, Source, Usage};
use lowtide_pool::Pool;
use lowtide_release::{
    Allocator, AllocatorCounts, Climb, Climbed, Clock, Expectation, Failure, Gauge, Hook,
    HookPoint, Inventory, Ladder, LedgerKind, LedgerLine, ManualClock, Mode, Pauses, Receipt,
    Registration, Releaser, Request, Resume, Rung, RungName, RungOutcome, Step, Target, Verdict,
    rungs,
};

use crate::world::World;

/// More calls within one another are without end.
const WITHOUT_END: usize = 6;

/// The callbacks of a caller.
const PLACES: [&str; 18] = [
    "account",
    "counts",
    "lines",
    "trimmable",
    "trim",
    "id",
    "usage",
    "own",
    "synchronize",
    "others",
    "noise",
    "grain",
    "now",
    "within",
    "name",
    "go on",
    "hook unless",
    "hook expect",
];

type Comes = Box<dyn Fn() -> Option<Receipt> + Send + Sync>;

/// A caller with code in every place, of which one comes back.
struct Caller {
    place: &'static str,
    comes_back: OnceLock<Comes>,
    depth: AtomicUsize,
    deepest: AtomicUsize,
    got: Mutex<Vec<Receipt>>,
    time: ManualClock,
}

impl Caller {
    fn new(place: &'static str) -> Arc<Caller> {
        Arc::new(Caller {
            place,
            comes_back: OnceLock::new(),
            depth: AtomicUsize::new(0),
            deepest: AtomicUsize::new(0),
            got: Mutex::default(),
            time: ManualClock::default(),
        })
    }

    fn called(&self, place: &str) {
        let Some(comes_back) = self.comes_back.get().filter(|_| place == self.place) else {
            return;
        };
        let depth = self.depth.fetch_add(1, SeqCst) + 1;
        self.deepest.fetch_max(depth, SeqCst);
        if depth < WITHOUT_END {
            let receipt = comes_back();
            self.got.lock().unwrap().extend(receipt);
        }
        self.depth.fetch_sub(1, SeqCst);
    }
}

impl Gauge for Caller {
    fn id(&self) -> DeviceId {
        self.called("id");
        DeviceId::Host
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        self.called("usage");
        let (total, free) = (Bytes::mib(9), Bytes::mib(4));
        Ok(Usage { total, free, reserved: Bytes::ZERO, source: Source::Kernel })
    }

    fn own(&self) -> Option<Bytes> {
        self.called("own");
        Some(Bytes::mib(5))
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        self.called("synchronize");
        Ok(())
    }

    fn others(&self) -> Vec<(String, Bytes)> {
        self.called("others");
        Vec::new()
    }

    fn noise(&self) -> Bytes {
        self.called("noise");
        Bytes::ZERO
    }

    fn grain(&self) -> Bytes {
        self.called("grain");
        Bytes(1)
    }
}

impl Allocator for Caller {
    fn name(&self) -> String {
        "framework".to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        self.called("counts");
        AllocatorCounts { allocated: Bytes::mib(1), reserved: Bytes::mib(2) }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        self.called("lines");
        Vec::new()
    }

    fn trimmable(&self) -> Bytes {
        self.called("trimmable");
        Bytes::ZERO
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        self.called("trim");
        Ok(Bytes::ZERO)
    }
}

impl Clock for Caller {
    fn now(&self) -> Duration {
        self.called("now");
        self.time.now()
    }

    fn pause(&self, duration: Duration) {
        self.time.pause(duration);
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.called("within");
        self.time.within(limit, work)
    }
}

impl Rung for Caller {
    fn name(&self) -> RungName {
        self.called("name");
        RungName::Trim
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        rungs::Trim.expect(inventory)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        rungs::Trim.climb(inventory, climb)
    }
}

/// A releaser whose callbacks are all of one caller.
struct House {
    releaser: Releaser,
    caller: Arc<Caller>,
    _registered: [Registration; 3],
}

impl House {
    fn new(place: &'static str) -> House {
        let caller = Caller::new(place);
        let gauge = Some(Arc::clone(&caller) as Arc<dyn Gauge>);
        let releaser = Releaser::with_gauge(gauge, Arc::clone(&caller) as Arc<dyn Clock>);
        let account = Arc::clone(&caller);
        let bytes = move || {
            account.called("account");
            Bytes::mib(1)
        };
        let (unless, expect) = (Arc::clone(&caller), Arc::clone(&caller));
        let hook = Hook::new("caches", |_| Ok(Vec::new()))
            .unless(move || {
                unless.called("hook unless");
                None
            })
            .expecting(move || {
                expect.called("hook expect");
                None
            });
        let registered = [
            releaser.add_allocator(Arc::clone(&caller) as Arc<dyn Allocator>),
            releaser.add_account(LedgerKind::Libraries, "account", bytes),
            releaser.add_hook(HookPoint::Caches, hook),
        ];
        House { releaser, caller, _registered: registered }
    }

    fn release(&self) -> Receipt {
        release(&self.releaser, &self.caller)
    }

    fn assert_ended(&self, what: &str) {
        let (place, deepest) = (self.caller.place, self.caller.deepest.load(SeqCst));
        assert!(deepest > 0, "{what}: {place:?} was never called");
        assert!(deepest <= 3, "{what}: {place:?} was called {deepest} deep");
        for receipt in self.caller.got.lock().unwrap().iter() {
            assert_eq!(receipt.verdict, Verdict::Busy, "{what} in {place:?}: {receipt}");
            assert!(!receipt.advice.is_empty(), "{what} in {place:?}");
        }
        assert!(self.releaser.gate().is_open(), "{what} in {place:?}");
    }
}

/// A release that calls every place of its caller.
fn release(releaser: &Releaser, caller: &Arc<Caller>) -> Receipt {
    let go_on = Arc::clone(caller);
    let rung = Arc::clone(caller) as Arc<dyn Rung>;
    let ladder = Ladder::of(vec![Arc::new(rungs::Quiesce), Arc::new(rungs::CACHES), rung]);
    let request = Request::new("outer", ladder).go_on_while(move || {
        go_on.called("go on");
        true
    });
    releaser.release(request)
}

#[test]
fn code_that_a_release_asks_may_not_ask_its_releaser_for_a_release() {
    type Ask = fn(&Releaser) -> Receipt;
    let kinds: [(&str, Ask); 3] = [
        ("empty_cache", Releaser::empty_cache),
        ("shutdown", Releaser::shutdown),
        ("the same", |releaser| {
            let ladder = Ladder::of(vec![Arc::new(rungs::Quiesce), Arc::new(rungs::Trim)]);
            releaser.release(Request::new("outer", ladder).or_refuse())
        }),
    ];
    for (what, ask) in kinds {
        for place in PLACES {
            let house = House::new(place);
            let releaser = house.releaser.clone();
            let comes: Comes = Box::new(move || Some(ask(&releaser)));
            assert!(house.caller.comes_back.set(comes).is_ok());
            let outer = house.release();
            assert_ne!(outer.verdict, Verdict::Busy, "{what} in {place:?}: {outer}");
            house.assert_ended(what);
            assert!(!house.caller.got.lock().unwrap().is_empty(), "{what} in {place:?}");
        }
    }
}

#[test]
fn code_that_is_asked_for_its_number_is_not_asked_again_for_the_numbers_of_all() {
    for place in PLACES {
        let house = House::new(place);
        let releaser = house.releaser.clone();
        let comes: Comes = Box::new(move || {
            let (_, _) = (releaser.ledger(), releaser.inventory().read());
            None
        });
        assert!(house.caller.comes_back.set(comes).is_ok());
        house.release();
        house.assert_ended("numbers");
    }
    // Nor outside of a release.
    for place in ["account", "counts", "usage"] {
        let house = House::new(place);
        let releaser = house.releaser.clone();
        let comes: Comes = Box::new(move || {
            assert_eq!(releaser.ledger(), None, "it is being asked");
            Some(releaser.shutdown())
        });
        assert!(house.caller.comes_back.set(comes).is_ok());
        assert!(house.releaser.ledger().is_some());
        house.releaser.inventory().read();
        house.assert_ended("a release");
    }
}

#[test]
fn releasers_that_ask_each_other_for_their_numbers_come_to_an_end() {
    for place in PLACES {
        let (one, other) = (House::new(place), House::new(place));
        for (from, to) in [(&one, &other), (&other, &one)] {
            let (releaser, caller) = (to.releaser.clone(), Arc::clone(&to.caller));
            let comes: Comes = Box::new(move || Some(release(&releaser, &caller)));
            assert!(from.caller.comes_back.set(comes).is_ok());
        }
        one.release();
        let deepest = [&one, &other].map(|house| house.caller.deepest.load(SeqCst));
        assert!(deepest[0] > 0 && deepest[1] > 0, "{place:?} {deepest:?}");
        assert!(deepest[0] <= 4 && deepest[1] <= 4, "{place:?} was called {deepest:?} deep");
        assert_eq!(other.caller.got.lock().unwrap()[0].verdict, Verdict::Busy, "{place:?}");
    }
}

fn releaser() -> (Releaser, Pool, ManualClock) {
    let World { releaser, pool, clock } = World::new();
    (releaser, pool, clock)
}

#[test]
fn a_flush_uses_the_gate_that_its_pause_has_closed() {
    let (releaser, pool, clock) = releaser();
    drop(pool.block(Bytes::mib(4)).unwrap());
    let (flushing, time, flushed) =
        (releaser.clone(), clock.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&flushed);
    let pauses = Pauses::new(&releaser).flushing(move || {
        let gate = flushing.gate();
        assert!(gate.try_enter().is_none(), "work has to wait");
        let mut pass = gate.enter();
        assert_eq!((pass.checkpoint(), gate.state().active), (Step::Go, 0));
        drop(gate.enter_awake(|| Ok::<(), ()>(())).unwrap());
        let (began, limit) = (time.now(), Duration::from_secs(60));
        let busy = gate.close_within(Mode::Drain, &time, limit).unwrap_err();
        assert!(busy.own && time.now() == began, "{busy}");
        drop(gate.close(Mode::Drain));
        let again = Pauses::new(&flushing).pause(Mode::Abort, limit);
        assert!(again.is_err_and(|busy| busy.own) && time.now() == began);
        let refused = flushing.shutdown();
        assert_eq!((refused.verdict, time.now()), (Verdict::Busy, began), "{refused}");
        assert!(refused.advice[0].contains("it would wait for itself"), "{refused}");
        assert_ne!(flushing.empty_cache().verdict, Verdict::Busy, "needs no gate");
        assert!(!gate.is_open(), "its pause opens it");
        count.fetch_add(1, SeqCst);
    });
    for (mode, flushes) in [(Mode::Abort, 1), (Mode::Retract, 2), (Mode::InPlace, 2)] {
        let paused = pauses.pause(mode, Duration::from_secs(1)).unwrap();
        assert_eq!(flushed.load(SeqCst), flushes);
        assert!(!releaser.gate().is_open());
        drop(paused.resume(Resume::default()));
        assert!(releaser.gate().is_open());
    }
    assert_eq!(releaser.shutdown().verdict, Verdict::Released, "outside it is granted");
}

/// A clock that runs parts on threads of their own, and waits for them for ever.
#[derive(Clone, Default)]
struct Threads(ManualClock);

impl Clock for Threads {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn pause(&self, duration: Duration) {
        self.0.pause(duration);
    }

    fn within(&self, _: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        thread::spawn(work).join().is_ok()
    }
}

#[test]
fn a_hook_enters_the_gate_that_a_pause_around_its_release_has_closed() {
    let (releaser, _pool, _) = releaser();
    let releaser = releaser.with_clock(Arc::new(Threads::default()));
    let (gate, entered) = (releaser.gate().clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&entered);
    let hook = Hook::new("collector", move |_| {
        drop(gate.enter());
        count.fetch_add(1, SeqCst);
        Ok(Vec::new())
    });
    let _hook = releaser.add_hook(HookPoint::Collect, hook);
    let pauses = Pauses::new(&releaser);
    drop(pauses.pause(Mode::Abort, Duration::from_secs(1)).unwrap());
    let by_pause_and_resume = entered.load(SeqCst);
    assert!(by_pause_and_resume >= 2, "both empty the cache");
    drop(pauses.pause(Mode::InPlace, Duration::from_secs(1)).unwrap());
    assert!(entered.load(SeqCst) > by_pause_and_resume, "the resume does");
}

#[test]
fn a_hook_of_a_release_within_a_release_enters_the_gates_of_both() {
    let ((outer, _one, _), (inner, _two, _)) = (releaser(), releaser());
    let clock: Arc<dyn Clock> = Arc::new(Threads::default());
    let (outer, inner) = (outer.with_clock(Arc::clone(&clock)), inner.with_clock(clock));
    let gates = [outer.gate().clone(), inner.gate().clone()];
    let enters = Hook::new("enters", move |_| {
        for gate in &gates {
            drop(gate.enter());
        }
        Ok(Vec::new())
    });
    let _enters = inner.add_hook(HookPoint::Caches, enters);
    let asks = inner.clone();
    let asks = Hook::new("asks another", move |_| {
        let receipt = asks.shutdown();
        assert_eq!(receipt.rung(RungName::Caches).unwrap().outcome, RungOutcome::Done);
        Ok(Vec::new())
    });
    let _asks = outer.add_hook(HookPoint::Caches, asks);
    let receipt = outer.shutdown();
    assert_eq!(receipt.rung(RungName::Caches).unwrap().outcome, RungOutcome::Done, "{receipt}");
    assert!(outer.gate().is_open() && inner.gate().is_open());
}

#[test]
fn a_question_whether_to_go_on_is_recognised_on_every_thread_and_its_panic_means_stop() {
    let (releaser, pool, _) = releaser();
    let weights = pool.block(Bytes::mib(16)).unwrap();
    let (asks, got) = (releaser.clone(), Arc::new(Mutex::new(Vec::new())));
    let receipts = Arc::clone(&got);
    let request = |name: &str| Request::new(name, Ladder::of(vec![Arc::new(rungs::Sleep)]));
    // Asked by the copying threads of the pool, too.
    let receipt = releaser.release(request("asks").go_on_while(move || {
        let verdict = asks.empty_cache().verdict;
        receipts.lock().unwrap().push((thread::current().id(), verdict));
        true
    }));
    assert_eq!(receipt.rungs[0].outcome, RungOutcome::Done, "{receipt}");
    let got = got.lock().unwrap();
    assert!(got.iter().all(|(_, verdict)| *verdict == Verdict::Busy), "{got:?}");
    pool.wake(lowtide_pool::Scope::Whole).unwrap();
    let receipt = releaser
        .release(request("panics").to(Target::Floor).go_on_while(|| panic!("of the question")));
    assert_eq!((receipt.verdict, &receipt.stopped_at), (Verdict::Busy, &Some(RungName::Sleep)));
    assert!(releaser.gate().is_open());
    drop(weights);
}

#[test]
fn a_thread_with_a_pass_enters_again_while_a_closer_waits_for_it() {
    let (releaser, _pool, _) = releaser();
    let gate = releaser.gate();
    let outer = gate.enter();
    thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close(Mode::InPlace));
        while gate.is_open() {
            thread::yield_now();
        }
        let mut inner = gate.enter();
        assert_eq!(inner.checkpoint(), Step::Go, "its work stops with that of the outer pass");
        drop(gate.enter_awake(|| Ok::<(), ()>(())).unwrap());
        assert!(!closer.is_finished());
        drop((inner, outer));
        drop(closer.join().unwrap());
    });
    assert_eq!(gate.state().active, 0);
}

#[test]
fn a_wake_that_enters_its_gate_wakes_nothing_again() {
    let (releaser, _pool, _) = releaser();
    let (gate, wakes) = (releaser.gate(), AtomicUsize::new(0));
    gate.close(Mode::Drain).mark_asleep();
    let wake = || {
        wakes.fetch_add(1, SeqCst);
        drop(gate.enter());
        drop(gate.enter_awake(|| Err("woken twice"))?);
        Ok::<(), &str>(())
    };
    drop(gate.enter_awake(wake).unwrap());
    drop(gate.enter_awake(wake).unwrap());
    assert_eq!((wakes.load(SeqCst), gate.state().active), (1, 0));
}

#[test]
fn whoever_waits_in_vain_is_told_where_the_passes_were_taken() {
    let (releaser, pool, _) = releaser();
    let kept = pool.block(Bytes::mib(4)).unwrap();
    let line = line!() + 1;
    let pass = releaser.gate().enter().into_owned();
    let place = format!("held since {}:{line}", file!());
    let refused = releaser.shutdown();
    assert_eq!(refused.verdict, Verdict::Busy);
    let told = format!("{place} (taken by this thread)");
    assert!(refused.advice[0].contains(&told), "{refused}");
    // To others it is another's.
    let (there, limit) = (Pauses::new(&releaser), Duration::from_secs(1));
    let busy = thread::scope(|scope| {
        scope.spawn(|| there.pause(Mode::Abort, limit).unwrap_err()).join().unwrap()
    });
    assert_eq!(busy.since, [format!("{}:{line}", file!())]);
    assert_eq!(busy.to_string(), format!("1 pass is still active, {place}"));
    drop(pass);
    assert_eq!(releaser.gate().try_close(Mode::Drain).map(drop), Ok(()));
    // A place of a host language stands for the one in Rust.
    let idle = lowtide_release::Idle::new("5m".parse().unwrap(), Arc::new(ManualClock::default()));
    let idling = lowtide_release::Idling::new(&releaser, &idle);
    let line = line!() + 1;
    let working = idling.work().unwrap();
    let busy = releaser.gate().try_close(Mode::Drain).unwrap_err();
    assert!(busy.to_string().contains(&format!("callbacks.rs:{line}")), "{busy}");
    working.pass().note_place("serve.py:12");
    let busy = releaser.gate().try_close(Mode::Drain).unwrap_err();
    assert!(busy.to_string().contains("held since serve.py:12"), "{busy}");
    // Of many, some are named.
    let many: Vec<_> = (0..20).map(|_| releaser.gate().enter().into_owned()).collect();
    let busy = releaser.gate().try_close(Mode::Drain).unwrap_err();
    assert_eq!((busy.active, busy.since.len()), (21, 9), "{busy}");
    assert_eq!(busy.since[8], "13 other places");
    drop((many, working, kept));
    assert_eq!(releaser.shutdown().verdict, Verdict::Released);
}
