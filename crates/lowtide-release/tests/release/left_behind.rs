//! Rungs and hooks that exceed their limit: they are told to stop, and where they do not, the gate
//! stays closed until they end and nobody starts them again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_pool::{Phase, Tag};
use lowtide_release::{
    Climb, Climbed, Clock, Expectation, Failure, Hook, HookPoint, Inventory, Ladder, ManualClock,
    Mode, Pauses, Receipt, Request, Rung, RungName, RungOutcome, Step, Verdict, rungs,
};

/// A clock that runs parts on threads of their own and moves only when it is told to. A part exceeds
/// its limit by moving it.
#[derive(Clone, Default)]
struct ThreadClock {
    manual: ManualClock,
    /// How often a part was waited for no longer.
    cut_off: Arc<AtomicUsize>,
    /// Whether threads cannot be had.
    has_no_threads: Arc<AtomicBool>,
    /// Whether the first pause after a part was cut off lasts until that part ends.
    pauses_until_it_ends: Arc<AtomicBool>,
    left: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Clock for ThreadClock {
    fn now(&self) -> Duration {
        self.manual.now()
    }

    fn pause(&self, duration: Duration) {
        self.manual.pause(duration);
        let left = self.left.lock().unwrap().take_if(|_| self.pauses_until_it_ends.load(SeqCst));
        if let Some(left) = left {
            left.join().unwrap();
        }
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        if self.has_no_threads.load(SeqCst) {
            return false;
        }
        let until = self.now() + limit;
        let worker = thread::spawn(work);
        while !worker.is_finished() {
            if self.now() > until {
                self.cut_off.fetch_add(1, SeqCst);
                *self.left.lock().unwrap() = Some(worker);
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

type World = crate::world::World<ThreadClock>;

impl World {
    fn climb(&self, rung: &Arc<Hangs>) -> Receipt {
        let ladder = Ladder::of(vec![Arc::clone(rung) as Arc<dyn Rung>, Arc::new(rungs::Trim)]);
        self.releaser.release(Request::new("climbs", ladder).alone())
    }

    fn until_open(&self) {
        while !self.releaser.gate().is_open() {
            thread::yield_now();
        }
    }
}

/// A rung that exceeds its limit, and goes on until it is told to stop or for as long as a channel is
/// open.
struct Hangs {
    clock: ManualClock,
    until: Mutex<Option<Receiver<()>>>,
    began: AtomicUsize,
    lets_work_go_on: bool,
    /// A little more than its limit.
    takes_s: u64,
}

impl Hangs {
    fn new(world: &World) -> Hangs {
        Hangs {
            clock: world.clock.manual.clone(),
            until: Mutex::default(),
            began: AtomicUsize::default(),
            lets_work_go_on: false,
            takes_s: 61,
        }
    }

    fn for_ever(world: &World) -> (Hangs, Sender<()>) {
        let (end, until) = channel();
        (Hangs { until: Mutex::new(Some(until)), ..Hangs::new(world) }, end)
    }

    fn hang(&self, climb: &Climb) {
        self.began.fetch_add(1, SeqCst);
        assert!(climb.go_on());
        self.clock.advance(Duration::from_secs(self.takes_s));
        match self.until.lock().unwrap().take() {
            Some(until) => drop(until.recv()),
            None => {
                while climb.go_on() {
                    thread::yield_now();
                }
            }
        }
        assert!(!climb.go_on(), "its limit is over");
    }
}

impl Rung for Hangs {
    fn name(&self) -> RungName {
        "hangs".into()
    }

    fn lets_work_go_on(&self) -> bool {
        self.lets_work_go_on
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(None)
    }

    fn climb(&self, _: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        self.hang(climb);
        Ok(Climbed { touched: vec!["a part of it".into()], ..Climbed::default() })
    }
}

fn cut_off(limit_ms: u64) -> RungOutcome {
    RungOutcome::CutOff { limit_ms }
}

fn mentions(receipt: &Receipt, text: &str) -> bool {
    let failures = receipt.rungs.iter().map(|rung| rung.outcome.to_string());
    failures.chain(receipt.advice.iter().cloned()).any(|line| line.contains(text))
}

#[test]
fn a_rung_that_stops_when_it_is_told_to_leaves_nothing_behind() {
    let world = World::new();
    world.clock.pauses_until_it_ends.store(true, SeqCst);
    let rung = Hangs::new(&world);
    drop(world.block(4));
    let receipt = world.climb(&Arc::new(rung));
    assert_eq!(receipt.rungs[0].outcome, cut_off(60_000));
    assert_eq!(receipt.rungs[1].outcome, RungOutcome::Done, "the next rung is climbed");
    assert!(world.releaser.gate().is_open() && !mentions(&receipt, "still runs"), "{receipt:?}");
}

#[test]
fn the_gate_stays_closed_until_a_rung_that_was_left_behind_ends() {
    let world = World::new();
    let (rung, end) = Hangs::for_ever(&world);
    let rung = Arc::new(rung);
    drop(world.block(4));
    let receipt = world.climb(&rung);
    assert_eq!(receipt.rungs[0].outcome, cut_off(60_000));
    let gate = world.releaser.gate();
    assert!(!gate.is_open(), "work would run beside a rung that takes its memory");
    assert!(mentions(&receipt, "the rung hangs still runs, since"), "{receipt}");
    // Whoever waits at the gate for a time is told, and so is a release that needs no gate.
    let told = "the gate stays closed: the rung hangs still runs, since 6";
    let busy = gate.close_within(Mode::Drain, &world.clock.manual, Duration::from_secs(1));
    assert!(busy.as_ref().unwrap_err().to_string().starts_with(told), "{busy:?}");
    let busy = Pauses::new(&world.releaser).pause(Mode::Abort, Duration::ZERO).unwrap_err();
    assert_eq!(busy.kept_by.len(), 1, "{busy}");
    assert!(gate.try_close(Mode::Drain).unwrap_err().to_string().contains("the rung hangs still"));
    assert!(mentions(&world.releaser.empty_cache(), "the rung hangs still runs, since"));
    // Other releases go on, and do not start it a second time.
    for _ in 0..50 {
        drop(world.block(4));
        let receipt = world.climb(&rung);
        assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
        assert!(mentions(&receipt, "ago; not started again"), "{receipt}");
        assert!(!gate.is_open());
    }
    assert_eq!(rung.began.load(SeqCst), 1);
    thread::scope(|scope| {
        let work = scope.spawn(|| gate.enter().checkpoint());
        drop(end);
        assert_eq!(work.join().unwrap(), Step::Go);
    });
    world.until_open();
    assert_eq!(gate.try_close(Mode::Drain).map(drop), Ok(()), "nothing keeps it closed");
    assert!(!mentions(&world.releaser.empty_cache(), "still runs"));
    assert!(!mentions(&world.climb(&rung), "not started again"));
    assert_eq!(rung.began.load(SeqCst), 2);
    world.until_open();
}

#[test]
fn a_rung_that_lets_work_go_on_keeps_no_gate_closed() {
    let world = World::new();
    let (rung, end) = Hangs::for_ever(&world);
    let rung = Arc::new(Hangs { lets_work_go_on: true, ..rung });
    let ladder = Ladder::of(vec![Arc::new(rungs::Quiesce), Arc::clone(&rung) as Arc<dyn Rung>]);
    let receipt = world.releaser.release(Request::new("closes", ladder));
    assert_eq!(receipt.rungs[1].outcome, cut_off(60_000));
    assert!(world.releaser.gate().is_open());
    drop(end);
}

#[test]
fn a_hook_that_hangs_is_not_started_again_while_it_hangs() {
    let world = World::new();
    let (rung, end) = Hangs::for_ever(&world);
    let hangs = Arc::new(Hangs { takes_s: 21, ..rung });
    let hook = |hangs: &Arc<Hangs>| {
        let hangs = Arc::clone(hangs);
        Hook::new("comm", move |call| {
            hangs.hang(&call.climb);
            Ok(Vec::new())
        })
    };
    let _kept = world.releaser.add_hook(HookPoint::Libraries, hook(&hangs));
    let receipt = world.releaser.shutdown();
    assert!(
        mentions(&receipt, "comm: did not end within 20000 ms and was left behind"),
        "{receipt}"
    );
    assert!(
        mentions(&receipt, "the hook \"comm\" of the rung libraries still runs, since 2"),
        "{receipt}"
    );
    for _ in 0..50 {
        let receipt = world.releaser.shutdown();
        assert!(mentions(&receipt, "comm: still running since"), "{receipt}");
        assert!(mentions(&receipt, "\"comm\" of the rung libraries still runs"), "{receipt}");
    }
    // One that a release brings along is the same, if it has the same name.
    let parts = rungs::Parts::new(RungName::ToHost, vec![hook(&hangs)]);
    let request = Request::new("brings it", Ladder::of(vec![Arc::new(parts)])).alone();
    assert!(mentions(&world.releaser.release(request), "comm: still running since"));
    assert_eq!(hangs.began.load(SeqCst), 1);
    drop(end);
    world.until_open();
}

/// The sleep, and whether it is under way.
struct Tells(Arc<AtomicBool>);

impl Rung for Tells {
    fn name(&self) -> RungName {
        RungName::Sleep
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        rungs::Sleep.expect(inventory)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        self.0.store(true, SeqCst);
        let climbed = rungs::Sleep.climb(inventory, climb);
        self.0.store(false, SeqCst);
        climbed
    }
}

#[test]
fn a_sleep_that_exceeds_its_limit_is_undone() {
    let world = World::new();
    let weights = world.block(8);
    weights.write(Bytes::mib(3), b"layer 3").unwrap();
    // Asked by the sleep, between pieces of its work: there the limit passes.
    let (clock, in_rung) = (world.clock.clone(), Arc::new(AtomicBool::new(false)));
    let told = Arc::clone(&in_rung);
    let until_cut_off = move || {
        if told.load(SeqCst) {
            clock.manual.advance(Duration::from_secs(601));
            while clock.cut_off.load(SeqCst) == 0 {
                thread::yield_now();
            }
        }
        true
    };
    let ladder = Ladder::of(vec![Arc::new(rungs::Sleep)]);
    world.releaser.replace_rung(Arc::new(Tells(in_rung)));
    let receipt = world.releaser.release(Request::new("sleeps", ladder).go_on_while(until_cut_off));
    assert_eq!(receipt.rungs[0].outcome, cut_off(600_000), "{receipt}");
    // It may need a moment to bring back what had left; the gate tells when.
    world.until_open();
    assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
    let mut bytes = [0; 7];
    weights.read(Bytes::mib(3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"layer 3");
}

#[test]
fn a_part_without_a_thread_has_not_exceeded_its_limit() {
    let world = World::new();
    world.clock.has_no_threads.store(true, SeqCst);
    let rung = Arc::new(Hangs::new(&world));
    let receipt = world.climb(&rung);
    let why = "no thread could be started for it".to_owned();
    assert_eq!(receipt.rungs[0].outcome, RungOutcome::Failed { why });
    assert!(world.releaser.gate().is_open());
    assert_eq!(rung.began.load(SeqCst), 0);
}
