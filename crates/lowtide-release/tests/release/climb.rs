//! Climbs that ask for climbs, climbs that are stopped, and the loop that watches for idle time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lowtide_device::neighbours::Neighbour;
use lowtide_device::{Bytes, Device, DeviceId, Usage};
use lowtide_pool::{Phase, Pool, SleepPolicy, Tag};
use lowtide_release::{
    Climb, Climbed, Clock, Decision, Expectation, Failure, Gauge, Hook, HookPoint, Idle, Idling,
    Inventory, Ladder, LogLevel, ManualClock, Mode, Receipt, Releaser, Request, Rung, RungName,
    RungOutcome, Step, Target, Tick, Verdict, rungs,
};

use crate::world::{self, host};

type World = world::World<ManualClock>;

/// Every receipt that a hook got.
type Receipts = Arc<Mutex<Vec<Receipt>>>;

/// A hook that asks for a release within its climb: here, and on a thread of its own.
fn asks(releaser: &Releaser, receipts: &Receipts) -> Hook {
    let (releaser, receipts) = (releaser.clone(), Arc::clone(receipts));
    Hook::new("asks", move |call| {
        let (there, climb) = (releaser.clone(), call.climb.clone());
        let elsewhere =
            move || there.release(Request::new("on a thread", Ladder::cache()).within(&climb));
        let here = releaser.release(Request::new("nested", Ladder::cache()).within(&call.climb));
        let elsewhere = thread::spawn(elsewhere).join().unwrap();
        receipts.lock().unwrap().extend([here, elsewhere]);
        Ok(Vec::new())
    })
}

#[test]
fn a_hook_that_asks_its_own_releaser_is_refused_on_any_thread() {
    let (world, receipts) = (World::new(), Receipts::default());
    drop(world.block(4));
    let _hook = world.releaser.add_hook(HookPoint::Caches, asks(&world.releaser, &receipts));
    let receipt = world.releaser.release(Request::new("outer", Ladder::shutdown()));
    assert_eq!(receipt.verdict, Verdict::Released);
    let receipts = receipts.lock().unwrap();
    assert_eq!(receipts.len(), 2);
    for refused in receipts.iter() {
        assert_eq!((refused.verdict, refused.rungs.len()), (Verdict::Busy, 0), "{refused}");
        assert!(refused.advice[0].contains("part of this one"), "{refused}");
    }
}

/// Asks for a release when it is dropped, without a word about the climb that it is dropped in.
struct AsksAtItsEnd(Releaser, Receipts);

impl Drop for AsksAtItsEnd {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0.empty_cache());
    }
}

#[test]
fn code_without_an_argument_is_recognised_by_its_thread() {
    let (world, receipts) = (World::new(), Receipts::default());
    drop(world.block(4));
    let asks = AsksAtItsEnd(world.releaser.clone(), Arc::clone(&receipts));
    let model = world.releaser.owners().own("model", asks);
    assert_eq!(world.releaser.shutdown().verdict, Verdict::Released);
    assert_eq!(receipts.lock().unwrap()[0].verdict, Verdict::Busy);
    // So is code that a climb runs beside its rungs.
    let (releaser, asked) = (world.releaser.clone(), Arc::clone(&receipts));
    let witness = move || {
        asked.lock().unwrap().push(releaser.empty_cache());
        Vec::new()
    };
    let request = Request::new("witnessed", Ladder::cache()).asking(Arc::new(witness));
    world.releaser.release(request);
    assert_eq!(receipts.lock().unwrap()[1].verdict, Verdict::Busy);
    drop(model);
    assert_eq!(world.releaser.empty_cache().verdict, Verdict::Released, "outside it is granted");
}

#[test]
fn a_release_of_another_releaser_is_granted_and_its_hooks_may_not_come_back() {
    let (world, other) = (World::new(), World::new());
    let receipts = Receipts::default();
    drop((world.block(4), other.block(4)));
    // A hook of the one asks the other, whose hook asks the one again.
    let (asked, inner) = (other.releaser.clone(), Arc::new(Mutex::new(None)));
    let got = Arc::clone(&inner);
    let asks_other = Hook::new("asks another", move |call| {
        let request = Request::new("inner", Ladder::shutdown()).within(&call.climb);
        *got.lock().unwrap() = Some(asked.release(request));
        Ok(Vec::new())
    });
    let _hooks = [
        world.releaser.add_hook(HookPoint::Caches, asks_other),
        other.releaser.add_hook(HookPoint::Caches, asks(&world.releaser, &receipts)),
    ];
    let outer = world.releaser.release(Request::new("outer", Ladder::shutdown()));
    let inner = inner.lock().unwrap().take().unwrap();
    assert_eq!((outer.verdict, inner.verdict), (Verdict::Released, Verdict::Released));
    let verdicts: Vec<_> = receipts.lock().unwrap().iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::Busy; 2], "it would wait for itself through the other");
}

#[test]
fn releasers_that_ask_each_other_are_known_by_their_threads() {
    let (world, other) = (World::new(), World::new());
    let receipts = Receipts::default();
    drop((world.block(4), other.block(4)));
    // As above, and nobody says within which climb it asks.
    let forth = other.releaser.clone();
    let forth = Hook::new("forth", move |_| {
        assert_eq!(forth.shutdown().verdict, Verdict::Released);
        Ok(Vec::new())
    });
    let (back, got) = (world.releaser.clone(), Arc::clone(&receipts));
    let back = Hook::new("back", move |_| {
        got.lock().unwrap().extend([back.shutdown(), back.empty_cache()]);
        Ok(Vec::new())
    });
    let _hooks = [
        world.releaser.add_hook(HookPoint::Caches, forth),
        other.releaser.add_hook(HookPoint::Caches, back),
    ];
    assert_eq!(world.releaser.shutdown().verdict, Verdict::Released);
    let verdicts: Vec<_> = receipts.lock().unwrap().iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::Busy; 2]);
}

#[test]
fn the_holder_of_a_pass_is_refused_at_once_and_by_name() {
    let world = World::new();
    let kept = world.block(4);
    let pass = world.releaser.gate().enter();
    let refused = world.releaser.shutdown();
    assert_eq!((refused.verdict, refused.took_s), (Verdict::Busy, 0.0));
    assert!(refused.advice[0].contains("this thread holds a pass itself"), "{refused}");
    assert!(world.releaser.gate().is_open());
    // What lets work go on needs no gate.
    assert_ne!(world.releaser.empty_cache().verdict, Verdict::Busy);
    drop((pass, kept));
    assert_eq!(world.releaser.shutdown().verdict, Verdict::Released);
}

/// A clock of somebody who waits: tells that, and waits until the other side of a channel is gone. If it
/// stays, the time of the wait is over.
struct Patient {
    time: ManualClock,
    waits: mpsc::Sender<()>,
    until: Mutex<mpsc::Receiver<()>>,
}

impl Clock for Patient {
    fn now(&self) -> Duration {
        self.time.now()
    }

    fn pause(&self, duration: Duration) {
        let _ = self.waits.send(());
        let told = self.until.lock().unwrap().recv_timeout(Duration::from_secs(300));
        let is_told = told == Err(mpsc::RecvTimeoutError::Disconnected);
        self.time.advance(if is_told { duration } else { Duration::from_secs(3600) });
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.time.within(limit, work)
    }
}

#[test]
fn the_holder_of_a_pass_does_not_wait_for_another_who_waits_for_it() {
    let world = World::new();
    drop(world.block(4));
    let pass = world.releaser.gate().enter();
    let ((waits, waiting), (stop, until)) = (mpsc::channel(), mpsc::channel());
    let until = Mutex::new(until);
    let clock = Patient { time: ManualClock::default(), waits, until };
    let other = world.releaser.with_clock(Arc::new(clock));
    let other = thread::spawn(move || other.shutdown());
    waiting.recv().unwrap();
    // The same request: it would be given the other's receipt.
    let refused = world.releaser.shutdown();
    assert_eq!(refused.verdict, Verdict::Busy);
    assert!(refused.advice[0].contains("this thread holds a pass itself"), "{refused}");
    drop((pass, stop));
    assert_eq!(other.join().unwrap().verdict, Verdict::Released);
}

#[test]
fn a_hook_uses_the_gate_that_its_release_has_closed() {
    let world = World::new();
    let (gate, clock) = (world.releaser.gate().clone(), world.clock.clone());
    let hook = Hook::new("uses the gate", move |_| {
        assert!(gate.try_enter().is_none(), "work has to wait");
        let mut pass = gate.enter();
        assert_eq!(gate.enter_within(&pass).checkpoint(), Step::Go);
        assert_eq!((pass.checkpoint(), gate.state().active), (Step::Go, 0));
        drop(gate.enter_awake(|| Ok::<(), ()>(())).unwrap());
        let (began, limit) = (clock.now(), Duration::from_secs(60));
        let busy = gate.close_within(Mode::Drain, &clock, limit).unwrap_err();
        assert!(busy.own && busy.closing && clock.now() == began, "{busy}");
        drop(gate.close(Mode::Drain));
        assert!(!gate.is_open(), "its release opens it");
        Ok(Vec::new())
    });
    let _hook = world.releaser.add_hook(HookPoint::Caches, hook);
    let receipt = world.releaser.shutdown();
    let caches = receipt.rung(RungName::Caches).unwrap();
    assert_eq!(caches.outcome, RungOutcome::Done);
    assert!(world.releaser.gate().is_open());
}

#[test]
fn a_climb_that_has_ended_refuses_nobody_and_puts_nothing_to_sleep() {
    let (world, kept) = (World::new(), Arc::new(Mutex::new(None)));
    let keeps = Arc::clone(&kept);
    let hook = Hook::new("keeps its climb", move |call| {
        *keeps.lock().unwrap() = Some(call.climb.clone());
        Ok(Vec::new())
    });
    let _hook = world.releaser.add_hook(HookPoint::Caches, hook);
    world.releaser.shutdown();
    drop(world.block(4));
    let climb = kept.lock().unwrap().take().unwrap();
    let request = Request::new("later", Ladder::cache()).within(&climb);
    assert_eq!(world.releaser.release(request).verdict, Verdict::Released);
    // A rung of it that was left behind puts nothing to sleep any more.
    let weights = world.block(4);
    assert!(climb.is_over());
    rungs::Sleep.climb(world.releaser.inventory(), &climb).unwrap();
    assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
    drop(weights);
}

/// A rung that counts, and says no more when it has been climbed so often.
struct Counts(Arc<AtomicUsize>);

impl Rung for Counts {
    fn name(&self) -> RungName {
        "counts".into()
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(None)
    }

    fn climb(&self, _: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        assert!(climb.go_on());
        self.0.fetch_add(1, SeqCst);
        Ok(Climbed::default())
    }
}

#[test]
fn a_release_stops_between_rungs_when_it_is_told_to() {
    let world = World::new();
    for stops_after in 0..4 {
        drop(world.block(4));
        let climbed = Arc::new(AtomicUsize::new(0));
        let counts = || -> Arc<dyn Rung> { Arc::new(Counts(Arc::clone(&climbed))) };
        let ladder = Ladder::of(vec![counts(), counts(), counts(), Arc::new(rungs::Trim)]);
        let seen = Arc::clone(&climbed);
        let request = Request::new("stopped", ladder)
            .to(Target::Floor)
            .go_on_while(move || seen.load(SeqCst) < stops_after);
        let receipt = world.releaser.release(request);
        assert_eq!((climbed.load(SeqCst), receipt.rungs.len()), (stops_after, stops_after));
        let next = if stops_after < 3 { "counts".into() } else { RungName::Trim };
        assert_eq!(receipt.stopped_at, Some(next));
        assert_eq!(receipt.verdict, Verdict::Busy, "nothing was freed: {receipt}");
        assert_eq!(LogLevel::of(&receipt), LogLevel::Info, "and nothing is wrong");
        assert!(world.releaser.gate().is_open());
    }
    let receipt = world.releaser.empty_cache();
    assert_eq!((receipt.verdict, receipt.stopped_at.clone()), (Verdict::Released, None));
}

#[test]
fn a_sleep_is_stopped_in_its_middle_and_everything_is_awake() {
    let world = World::new();
    let weights = world.block(16);
    let in_use = world.releaser.inventory().read().in_use();
    let mut stopped_in_the_middle = 0;
    // However often it is asked before it is told to stop.
    for most in 1..64 {
        let asked = AtomicUsize::new(0);
        let ladder = Ladder::of(vec![Arc::new(rungs::Sleep), Arc::new(rungs::Trim)]);
        let request = Request::new("stopped", ladder)
            .to(Target::Floor)
            .go_on_while(move || asked.fetch_add(1, SeqCst) < most);
        let receipt = world.releaser.release(request);
        if receipt.verdict == Verdict::Released {
            // So often, and it came to its end.
            assert!(stopped_in_the_middle > 0, "it was never asked within the sleep");
            assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Asleep);
            world.pool.wake(lowtide_pool::Scope::Whole).unwrap();
            drop(weights);
            return;
        }
        assert_eq!((receipt.verdict, &receipt.stopped_at), (Verdict::Busy, &Some(RungName::Sleep)));
        let sleep = receipt.rung(RungName::Sleep).unwrap();
        stopped_in_the_middle += usize::from(!sleep.skipped.is_empty());
        assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
        assert_eq!(world.releaser.inventory().read().in_use(), in_use, "nothing has left");
    }
    panic!("it never came to its end");
}

/// Releases because of idleness, while work comes in a thread and waits at the gate.
fn release_while_work_comes(
    world: &World,
    idling: &Idling,
    point: HookPoint,
    work: impl Fn() + Clone + Send + Sync + 'static,
) -> Receipt {
    let arrived: Arc<Mutex<Option<thread::JoinHandle<()>>>> = Arc::default();
    let (gate, thread) = (world.releaser.gate().clone(), Arc::clone(&arrived));
    let hook = Hook::new("slow", move |_| {
        *thread.lock().unwrap() = Some(thread::spawn(work.clone()));
        while gate.state().waiting == 0 {
            thread::yield_now();
        }
        Ok(Vec::new())
    });
    let _hook = world.releaser.add_hook(point, hook);
    let Tick::Released(receipt) = idling.tick() else { panic!("it was time") };
    arrived.lock().unwrap().take().unwrap().join().expect("it went through");
    receipt
}

#[test]
fn work_that_arrives_stops_an_idle_release_before_its_next_rung() {
    let world = World::new();
    let idle = Idle::new("5m".parse().unwrap(), Arc::new(world.clock.clone()));
    let idling = Idling::new(&world.releaser, &idle);
    let weights = world.block(8);
    drop(idling.work().unwrap());
    world.clock.advance(Duration::from_secs(300));
    // It comes while the caches are cleared, and waits at the gate.
    let comes = idling.clone();
    let work = move || drop(comes.work().unwrap());
    let receipt = release_while_work_comes(&world, &idling, HookPoint::Caches, work);
    assert_eq!(receipt.stopped_at, Some(RungName::Collect), "{receipt}");
    assert!(receipt.rung(RungName::Sleep).is_none());
    assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
    drop(weights);
}

#[test]
fn work_that_uses_the_gate_alone_stops_an_idle_release_too() {
    let world = World::new();
    let idle = Idle::new("0s".parse().unwrap(), Arc::new(world.clock.clone()));
    let idling = Idling::new(&world.releaser, &idle);
    let _weights = world.block(8);
    drop(idling.work().unwrap());
    let gate = world.releaser.gate().clone();
    let work = move || drop(gate.enter());
    let receipt = release_while_work_comes(&world, &idling, HookPoint::Sessions, work);
    assert_eq!(receipt.stopped_at, Some(RungName::Caches), "{receipt}");
}

#[test]
fn a_watch_ticks_until_it_is_told_to_stop_and_hands_every_receipt_on() {
    let world = World::new();
    let idle = Idle::new("30s".parse().unwrap(), Arc::new(world.clock.clone()));
    let idling = Idling::new(&world.releaser, &idle);
    let _weights = world.block(8);
    drop(idling.work().unwrap());
    let (mut pauses, mut receipts) = (Vec::new(), Vec::new());
    let pause = |time: Duration| {
        pauses.push(time);
        world.clock.advance(time);
        pauses.len() < 40
    };
    idling.watch(pause, |receipt| receipts.push(receipt.clone()));
    assert_eq!(pauses.len(), 40);
    // The quiet time is thirty times the longest pause.
    assert!(pauses.iter().all(|pause| *pause == Duration::from_secs(1)), "{pauses:?}");
    assert_eq!(receipts.len(), 1, "once the quiet time was over");
    assert_eq!(receipts[0].verdict, Verdict::Released);
    // Work finds its memory awake, and the next finds nothing to wake.
    drop(idling.work().unwrap());
    assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
}

/// A device that this process can leave, as a suspended process has.
struct Leaving {
    device: Device,
    is_away: AtomicBool,
    neighbours: Mutex<Vec<Neighbour>>,
}

impl Leaving {
    fn new(device: Device) -> Leaving {
        Leaving { device, is_away: AtomicBool::new(false), neighbours: Mutex::default() }
    }
}

impl Gauge for Leaving {
    fn id(&self) -> DeviceId {
        self.device.id()
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        self.device.usage()
    }

    fn own(&self) -> Option<Bytes> {
        if self.is_away() { Some(Bytes::ZERO) } else { Gauge::own(&self.device) }
    }

    fn is_away(&self) -> bool {
        self.is_away.load(SeqCst)
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        assert!(!self.is_away(), "nobody waits for a device without this process");
        Ok(())
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        self.neighbours.lock().unwrap().clone()
    }
}

#[test]
fn an_idle_release_gives_way_to_a_process_that_starts_and_one_that_is_asked_for_does_not() {
    let (device, clock) = (host(32), ManualClock::default());
    let pool = Pool::new(&device).unwrap();
    let _live = pool.block(Bytes::mib(4)).unwrap();
    let gauge = Arc::new(Leaving::new(device));
    let releaser = Releaser::with_gauge(Some(Arc::clone(&gauge) as _), Arc::new(clock.clone()));
    releaser.add_pool(&pool);
    let options = ["task", "0s"].map(|text| text.parse().unwrap());
    for idle in options.map(|options| Idle::new(options, Arc::new(clock.clone()))) {
        let idling = Idling::new(&releaser, &idle);
        let age = Duration::from_secs(7);
        let young = Neighbour { pid: 77, start_ticks: 5, name: "engine".to_owned(), age };
        gauge.neighbours.lock().unwrap().push(young.clone());
        let tick = idling.work().unwrap().end().unwrap_or_else(|| idling.tick());
        let Tick::No(Decision::GivesWay { to }) = &tick else { panic!("{tick:?}") };
        assert_eq!(to, &young);
        assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
        // The loop that watches makes up for it.
        gauge.neighbours.lock().unwrap().clear();
        clock.advance(idling.pause_after(&tick).max(Duration::from_secs(1)));
        assert!(matches!(idling.tick(), Tick::Released(_)));
        gauge.neighbours.lock().unwrap().push(young);
        drop(idling.work().unwrap());
        let asked = releaser.release(Request::new("asked for", Ladder::idle()));
        assert_eq!(asked.verdict, Verdict::Released, "{asked}");
        gauge.neighbours.lock().unwrap().clear();
    }
}

#[test]
fn a_release_to_zero_bytes_ends_with_the_suspend_of_this_process() {
    let device = host(32);
    let pool = Pool::new(&device).unwrap();
    let _live = pool.block(Bytes::mib(4)).unwrap();
    let gauge = Arc::new(Leaving::new(device));
    let clock = Arc::new(ManualClock::default());
    let releaser = Releaser::with_gauge(Some(Arc::clone(&gauge) as _), clock);
    let leaves = Hook::new("this process", move |_| {
        gauge.is_away.store(true, SeqCst);
        Ok(vec!["this process, suspended".into()])
    });
    let _hook = releaser.add_hook(HookPoint::Suspend, leaves);
    let to = |ladder| Request::new("release", ladder).to(Target::Under(Bytes::ZERO));
    let receipt = releaser.release(to(Ladder::gradual()));
    assert_ne!(receipt.verdict, Verdict::Released, "only a ladder to zero reaches it: {receipt}");
    assert_eq!(receipt.not_run, [] as [&str; 0], "and no other is told that it left it out");
    let receipt = releaser.release(to(Ladder::zero()));
    assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
    let last = receipt.rungs.last().expect("rungs");
    assert_eq!((last.rung.clone(), last.attempt), (RungName::Suspend, 1));
    assert_eq!(last.freed_bytes, Some(4 << 20), "the rung that brought the bytes says so");
    let receipt = releaser.release(to(Ladder::zero()));
    assert_eq!(receipt.verdict, Verdict::Released);
    assert!(
        receipt.rungs.is_empty(),
        "nothing is left to do, and nothing brings it back: {receipt}"
    );
}

/// Climbs the idle ladder with a cache that drops one block of 4 MiB each time it is cleared, and a target that
/// memory of another pool keeps out of reach. Returns the receipt, and how often the cache was cleared.
fn idle_with_a_cache_of(blocks: usize) -> (Receipt, usize) {
    let world = World::new();
    let other = Pool::new(world.pool.device()).unwrap();
    let _kept = other.block(Bytes::mib(4)).unwrap();
    let cached = Mutex::new((0..blocks).map(|_| world.block(4)).collect::<Vec<_>>());
    let cleared = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&cleared);
    let cache = Hook::new("cache", move |_| {
        count.fetch_add(1, SeqCst);
        drop(cached.lock().unwrap().pop());
        Ok(Vec::new())
    });
    let _hook = world.releaser.add_hook(HookPoint::Caches, cache);
    // What sleeps would be off the device, in the cache or not.
    world.pool.set_policy(Tag::default(), SleepPolicy::Keep).unwrap();
    let request = Request::new("idle", Ladder::idle()).to(Target::Under(Bytes::ZERO));
    let receipt = world.releaser.release(request);
    (receipt, cleared.load(SeqCst))
}

#[test]
fn a_ladder_is_climbed_again_only_if_its_fallback_has_freed_something() {
    let attempts = |receipt: &Receipt| receipt.rungs.last().map(|rung| rung.attempt);
    // The rung `caches` empties it. The fallback clears it once more, in vain: so would a second attempt.
    let (receipt, cleared) = idle_with_a_cache_of(1);
    assert_eq!((attempts(&receipt), cleared), (Some(1), 2), "{receipt}");
    assert_eq!(receipt.freed_bytes, Some(4 << 20), "{receipt}");
    // The fallback of the first attempt frees the second block, the second attempt the third.
    let (receipt, cleared) = idle_with_a_cache_of(3);
    assert_eq!((attempts(&receipt), cleared), (Some(2), 4), "{receipt}");
    assert_eq!(receipt.freed_bytes, Some(12 << 20), "{receipt}");
}

#[test]
fn a_fallback_that_has_freed_nothing_waits_until_the_numbers_change() {
    let world = World::new();
    let _kept = world.block(4);
    let cleared = Arc::new(AtomicUsize::new(0));
    let (count, last_resort) = (Arc::clone(&cleared), Arc::new(AtomicUsize::new(0)));
    let cache = Hook::new("cache", move |_| {
        count.fetch_add(1, SeqCst);
        Ok(Vec::new())
    });
    let _hook = world.releaser.add_hook(HookPoint::Caches, cache);
    let count = Arc::clone(&last_resort);
    let last = Hook::new("the last resort", move |_| {
        count.fetch_add(1, SeqCst);
        Ok(Vec::new())
    });
    let _last = world.releaser.add_hook(HookPoint::Fallback, last);
    world.pool.set_policy(Tag::default(), SleepPolicy::Keep).unwrap();
    let idle = || {
        let before = cleared.swap(0, SeqCst);
        let request = Request::new("idle", Ladder::idle()).to(Target::Under(Bytes::ZERO));
        let receipt = world.releaser.release(request);
        assert_eq!(receipt.freed_bytes, Some(0), "{receipt}, {before}");
        cleared.load(SeqCst)
    };
    assert_eq!(idle(), 2, "by the rung and by the fallback");
    assert_eq!(idle(), 1, "nothing has changed since");
    let _more = world.block(4);
    assert_eq!((idle(), idle()), (2, 1));
    assert_eq!(last_resort.load(SeqCst), 4, "a hook of the last resort always runs");
}
