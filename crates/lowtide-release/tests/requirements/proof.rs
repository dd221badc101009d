//! R45 and R47, and what bad luck there is: nothing counts as freed because a call returned.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, DeviceId, Error, Usage};
use lowtide_pool::{Block, Scope, SleepPolicy};
use lowtide_release::{
    Allocator, AllocatorCounts, Climb, Climbed, Clock, Expectation, Failure, Gauge, Inventory,
    Ladder, LedgerKind, LedgerLine, ManualClock, Mode, Owned, Pauses, Request, Resume, Rung,
    RungName, RungOutcome, Step, Target, Verdict, rungs,
};

use super::ground::{Ground, Hands};
use super::pieces::{RealClock, Worker};
use super::proofs;

proofs! {
    r45_what_a_receipt_says_is_what_the_device_says needs ["drop", "trim"];
    r45_nothing_counts_as_freed_because_a_call_returned needs ["trim"];
    r45_a_device_that_cannot_be_asked_is_unverified needs [];
    r45_noise_of_a_device_proves_nothing needs ["trim"];
    r47_the_ledger_adds_up_and_the_unknown_is_printed needs ["trim"];
    bad_luck_a_rung_that_hangs_is_cut_off_and_named needs ["trim"];
    bad_luck_a_release_waits_for_a_task_or_refuses needs ["drop", "trim"];
    bad_luck_who_waits_for_the_gate_keeps_nobody_from_cleaning needs ["drop", "trim"];
    bad_luck_two_threads_get_the_same_receipt needs ["sleep"];
    bad_luck_a_release_of_its_own_gets_its_own_receipt needs ["trim"];
    bad_luck_a_release_that_is_interrupted_opens_the_gate needs ["trim"];
    bad_luck_a_release_of_what_sleeps_wakes_nothing needs ["sleep"];
}

fn r45_what_a_receipt_says_is_what_the_device_says(ground: &Ground) {
    let model = ground.releaser.owners().own("model", ground.block(24));
    let before = ground.device.usage().unwrap().in_use();
    let receipt = ground.releaser.shutdown();
    let after = ground.device.usage().unwrap().in_use();
    ground.assert_in_use(0, "it is gone");
    assert_eq!((receipt.before.driver, receipt.after.driver), (Some(before), Some(after)));
    assert_eq!(receipt.verdict, Verdict::Released);
    // Rung by rung: what each gave back adds up to the whole.
    let by_rung: i64 = receipt.rungs.iter().map(|rung| rung.freed_bytes.unwrap()).sum();
    assert_eq!(receipt.freed_bytes, Some(by_rung));
    assert_eq!(receipt.freed_bytes, Some((before - after).0.cast_signed()));
    drop(model);
}

/// Says that it gave memory back, and did not.
struct Liar;

impl Allocator for Liar {
    fn name(&self) -> String {
        "liar".to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        AllocatorCounts { allocated: Bytes::ZERO, reserved: Bytes::mib(24) }
    }

    fn lines(&self) -> Vec<LedgerLine> {
        Vec::new()
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        Ok(Bytes::mib(24))
    }
}

fn r45_nothing_counts_as_freed_because_a_call_returned(ground: &Ground) {
    let _held = ground.chunk(24);
    let _plugged = ground.releaser.add_allocator(Arc::new(Liar));
    let receipt = ground.releaser.empty_cache();
    ground.assert_in_use(24, "all of it is there");
    let trimmed = receipt.rung("trim").unwrap();
    let said = trimmed.touched.first().and_then(|touch| touch.bytes);
    assert_eq!(said, Some(Bytes::mib(24)), "what it says");
    assert_eq!((receipt.verdict, receipt.freed_bytes), (Verdict::NoEffect, Some(0)), "what is so");
    assert!(!receipt.verdict.is_proved());
}

/// A device that does not answer.
struct Silent;

impl Gauge for Silent {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(0)
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        Err(Error::Nvml { question: "what is in use", answer: "nothing".to_owned() })
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        Ok(())
    }
}

fn r45_a_device_that_cannot_be_asked_is_unverified(ground: &Ground) {
    let releaser = ground.releaser_with(Arc::new(Silent), Arc::new(ground.clock.clone()));
    releaser.add_pool(&ground.pool);
    drop(ground.block(24));
    let receipt = releaser.empty_cache();
    ground.assert_in_use(0, "it was freed");
    // But by whose word?
    assert_eq!((receipt.verdict, receipt.freed_bytes), (Verdict::Unverified, None));
    assert!(receipt.ledger.is_none() && receipt.summary().contains("unknown"), "{receipt}");
}

/// A device whose numbers are known to move by themselves.
struct Noisy(lowtide_device::Device);

impl Gauge for Noisy {
    fn id(&self) -> DeviceId {
        Gauge::id(&self.0)
    }

    fn usage(&self) -> lowtide_device::Result<Usage> {
        self.0.usage()
    }

    fn own(&self) -> Option<Bytes> {
        Gauge::own(&self.0)
    }

    fn synchronize(&self) -> lowtide_device::Result<()> {
        self.0.synchronize()
    }

    fn noise(&self) -> Bytes {
        Bytes::mib(8)
    }
}

fn r45_noise_of_a_device_proves_nothing(ground: &Ground) {
    let gauge = Arc::new(Noisy(ground.device.clone()));
    let releaser = ground.releaser_with(gauge, Arc::new(ground.clock.clone()));
    releaser.add_pool(&ground.pool);
    for (mib, verdict) in [(8, Verdict::Unverified), (10, Verdict::Released)] {
        drop(ground.block(mib));
        let receipt = releaser.empty_cache();
        ground.assert_in_use(0, "trimmed");
        assert_eq!(receipt.verdict, verdict, "{receipt}");
    }
}

fn r47_the_ledger_adds_up_and_the_unknown_is_printed(ground: &Ground) {
    let releaser = &ground.releaser;
    // On a GPU the driver has some in use for nobody.
    let nobodys = releaser.ledger().unwrap().unknown_bytes;
    let _weights = ground.tagged("weights", SleepPolicy::Offload, 24);
    drop(ground.tagged("activations", SleepPolicy::Discard, 16));
    let (_graphs, _stray) = (ground.chunk(8), ground.chunk(16));
    let _plugged = releaser.add_account(LedgerKind::Graphs, "captured graphs", || Bytes::mib(8));
    let adds_up = |ledger: &lowtide_release::Ledger| {
        let said = ground.device.usage().unwrap().in_use();
        assert_eq!((ledger.driver_bytes, ledger.sum()), (said, said.0.cast_signed()), "{ledger}");
        // On a GPU what this process uses beside all that is known is its libraries'.
        let libraries = ledger.of(LedgerKind::Libraries).0.cast_signed();
        let untold = ledger.unknown_bytes - nobodys + libraries;
        ground.assert_same(untold, 16, "what nobody told of");
        let is_told =
            matches!(ground.device.id(), DeviceId::Cuda(_)) && ground.device.own().is_some();
        assert_eq!(libraries > 0, is_told, "{ledger}");
        assert!(ledger.to_string().contains("\n  unknown "), "{ledger}");
    };
    let ledger = releaser.ledger().unwrap();
    adds_up(&ledger);
    let kinds =
        [LedgerKind::Live, LedgerKind::Cached, LedgerKind::Graphs].map(|kind| ledger.of(kind));
    assert_eq!(kinds, [24, 16, 8].map(Bytes::mib));
    let receipt = releaser.empty_cache();
    ground.assert_in_use(48, "trimmed");
    let ledger = receipt.ledger.as_ref().unwrap();
    adds_up(ledger);
    assert_eq!(ledger.of(LedgerKind::Cached), Bytes::ZERO, "{ledger}");
    // Without a floor the context has a line of its own with them, and is not unknown.
    if let (DeviceId::Cuda(_), Some(own)) = (ground.device.id(), ground.device.own()) {
        let device = Arc::new(ground.device.clone());
        let floorless = ground.releaser_with(device, Arc::new(ground.clock.clone()));
        floorless.add_pool(&ground.pool);
        let ledger = floorless.ledger().unwrap();
        let rest = own - Bytes::mib(24);
        assert_eq!(ledger.of(LedgerKind::ContextAndLibraries), rest, "{ledger}");
        assert!(ledger.to_string().contains("\n  context and libraries "), "{ledger}");
        ground.assert_same(ledger.unknown_bytes - nobodys, 0, "the driver's, and nobody else's");
        // One that is larger than all that this process uses is not its floor.
        floorless.set_floor(own + Bytes::mib(100));
        let ledger = floorless.ledger().unwrap();
        assert_eq!(ledger.of(LedgerKind::ContextAndLibraries), rest, "{ledger}");
        let receipt = floorless.release(Request::new("idle", Ladder::cache()).to(Target::Floor));
        assert_eq!(receipt.verdict, Verdict::Unverified, "no floor is known: {receipt}");
    }
    // Where nothing is unknown, that is printed too.
    let (books, _) = lowtide_device::Device::dry_run(Bytes::gib(1));
    let empty = ground.releaser_with(Arc::new(books), Arc::new(ground.clock.clone()));
    let ledger = empty.ledger().unwrap();
    assert!(ledger.unknown_bytes == 0 && ledger.to_string().contains("unknown "), "{ledger}");
}

/// A rung that does not end before it is let.
struct Hangs(Mutex<mpsc::Receiver<()>>);

impl Rung for Hangs {
    fn name(&self) -> RungName {
        "hangs".into()
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(None)
    }

    fn climb(&self, _: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        let _ = self.0.lock().unwrap().recv();
        Ok(Climbed::default())
    }
}

fn bad_luck_a_rung_that_hangs_is_cut_off_and_named(ground: &Ground) {
    let releaser = ground.releaser_on(RealClock::new(ground));
    let (end, ended) = mpsc::channel();
    drop(ground.block(24));
    let ladder = Ladder::of(vec![Arc::new(Hangs(Mutex::new(ended))), Arc::new(rungs::Trim)]);
    let ladder = ladder.limit(&"hangs".into(), Duration::from_millis(20));
    let receipt = releaser.release(Request::new("all", ladder));
    drop(end);
    ground.assert_in_use(0, "the next rung was climbed all the same");
    assert_eq!(receipt.rung("hangs").unwrap().outcome, RungOutcome::CutOff { limit_ms: 20 });
    let text = receipt.detailed().to_string();
    assert!(text.contains("cut off after 20 ms, it may still be running"), "{text}");
}

fn bad_luck_a_release_waits_for_a_task_or_refuses(ground: &Ground) {
    let (releaser, hands) = (ground.releaser_on(RealClock::new(ground)), Hands::new(ground));
    let weights = ground.block(24);
    hands.write(&ground.pool, &weights, 4);
    let address = weights.address();
    let model = releaser.owners().own("model", weights);
    let request = Worker::start(releaser.gate());
    let refused = releaser.release(Request::new("shutdown", Ladder::shutdown()).or_refuse());
    ground.assert_in_use(24, "a task uses it");
    assert_eq!((refused.verdict, refused.rungs.len()), (Verdict::Busy, 0));
    assert!(refused.advice[0].contains("1 pass is still active"), "{refused}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| releaser.shutdown());
        while releaser.gate().state().open {
            thread::yield_now();
        }
        // It waits, and nothing was pulled from under the task.
        model.with(|weights| {
            assert_eq!(weights.address(), address);
            hands.assert_is_whole(&ground.pool, weights, 4);
        });
        ground.assert_in_use(24, "it is still at work");
        assert_eq!(request.end(), Step::Go, "nobody told it to stop");
        assert_eq!(waiting.join().unwrap().verdict, Verdict::Released);
    });
    ground.assert_in_use(0, "it has ended");
}

/// The first rung of a ladder, which tells when two asks are compared, under the lock and just before
/// the second begins to wait; and just before the gate is closed.
struct Told {
    armed: AtomicBool,
    tell: Mutex<mpsc::Sender<()>>,
}

impl Told {
    /// Puts it into a ladder. It tells from now on.
    fn put(ladder: &Ladder, tell: mpsc::Sender<()>) -> Ladder {
        let told = Arc::new(Told { armed: AtomicBool::new(false), tell: Mutex::new(tell) });
        let rung: Arc<dyn Rung> = told.clone();
        let ladder = ladder.clone().replace(&RungName::Quiesce, &rung);
        told.armed.store(true, SeqCst);
        ladder
    }

    fn tell(&self) {
        if self.armed.load(SeqCst) {
            let _ = self.tell.lock().unwrap().send(());
        }
    }
}

impl Rung for Told {
    fn name(&self) -> RungName {
        self.tell();
        RungName::Quiesce
    }

    fn lets_work_go_on(&self) -> bool {
        self.tell();
        rungs::Quiesce.lets_work_go_on()
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        rungs::Quiesce.expect(inventory)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        rungs::Quiesce.climb(inventory, climb)
    }
}

fn bad_luck_who_waits_for_the_gate_keeps_nobody_from_cleaning(ground: &Ground) {
    let releaser = ground.releaser_on(RealClock::new(ground));
    let pauses = Pauses::new(&releaser);
    let model: Owned<Block> = releaser.owners().declare("model");
    // A task that cleans up after itself, and a pause that does before it ends.
    for is_pause in [false, true] {
        model.put(ground.block(24));
        drop(ground.block(16));
        let pass = (!is_pause).then(|| releaser.gate().enter());
        let paused = is_pause.then(|| pauses.pause(Mode::InPlace, Duration::ZERO).unwrap());
        let (tell, told) = mpsc::channel();
        let ask = Request::new("shutdown", Told::put(&Ladder::shutdown(), tell));
        let releaser = &releaser;
        thread::scope(move |scope| {
            let waits = scope.spawn(|| releaser.release(ask));
            told.recv().expect("the shutdown waits for it");
            let cleaned = match paused {
                Some(paused) => paused.resume(Resume::default()).receipt.unwrap(),
                None => releaser.empty_cache(),
            };
            ground.assert_freed(&cleaned, 16);
            drop(pass);
            let receipt = waits.join().unwrap();
            assert_eq!(receipt.verdict, Verdict::Released, "{receipt}");
        });
        ground.assert_in_use(0, "both came to their end");
    }
}

/// A sleep that says when it begins, and goes on when it may.
struct Slow {
    began: Mutex<mpsc::Sender<()>>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Rung for Slow {
    fn name(&self) -> RungName {
        RungName::Sleep
    }

    fn expect(&self, inventory: &Inventory) -> Expectation {
        rungs::Sleep.expect(inventory)
    }

    fn climb(&self, inventory: &Inventory, climb: &Climb) -> Result<Climbed, Failure> {
        self.began.lock().unwrap().send(())?;
        let _ = self.goes_on.lock().unwrap().recv();
        rungs::Sleep.climb(inventory, climb)
    }
}

fn bad_luck_two_threads_get_the_same_receipt(ground: &Ground) {
    let (releaser, hands) = (&ground.releaser, Hands::new(ground));
    let weights = ground.block(24);
    hands.write(&ground.pool, &weights, 5);
    let (began, told) = mpsc::channel();
    let (tell, goes_on) = mpsc::channel();
    let slow: Arc<dyn Rung> =
        Arc::new(Slow { began: Mutex::new(began), goes_on: Mutex::new(goes_on) });
    let one =
        Request::new("one", Ladder::idle().replace(&RungName::Sleep, &slow)).to(Target::Floor);
    drop(slow);
    let other = Request::new("other", Told::put(&Ladder::idle(), tell)).to(Target::Floor);
    thread::scope(|scope| {
        let first = scope.spawn(|| releaser.release(one));
        told.recv().expect("it is in the middle of its sleep");
        let second = scope.spawn(|| releaser.release(other));
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        let told = [&first, &second].map(|receipt| receipt.detailed().to_string());
        assert_eq!(told[0], told[1], "one does the work, the other has its receipt");
        assert_eq!((first.name.as_str(), first.verdict), ("one", Verdict::Released));
        ground.assert_freed(&first, 24);
    });
    ground.assert_in_use(0, "asleep, once");
    ground.pool.wake(Scope::Whole).unwrap();
    hands.assert_is_whole(&ground.pool, &weights, 5);
}

/// A rung of one release alone: it frees its own, and leaves another time to ask meanwhile.
struct Its {
    block: Mutex<Option<Block>>,
    began: Mutex<mpsc::Sender<()>>,
}

impl Rung for Its {
    fn name(&self) -> RungName {
        RungName::Drop
    }

    fn lets_work_go_on(&self) -> bool {
        true
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(None)
    }

    fn climb(&self, _: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        self.block.lock().unwrap().take();
        let _ = self.began.lock().unwrap().send(());
        thread::sleep(Duration::from_millis(50));
        Ok(Climbed::default())
    }
}

fn bad_luck_a_release_of_its_own_gets_its_own_receipt(ground: &Ground) {
    let (began, told) = mpsc::channel();
    let ask = |name: &str| {
        let block = Mutex::new(Some(ground.block(8)));
        let rung: Arc<dyn Rung> = Arc::new(Its { block, began: Mutex::new(began.clone()) });
        Request::new(name, Ladder::of(vec![rung, Arc::new(rungs::Trim)])).alone()
    };
    let (one, other) = (ask("one"), ask("other"));
    thread::scope(|scope| {
        let one = scope.spawn(|| ground.releaser.release(one));
        told.recv().expect("it is in the middle of it");
        let other = ground.releaser.release(other);
        let one = one.join().unwrap();
        assert_eq!((one.name.as_str(), other.name.as_str()), ("one", "other"));
    });
    ground.assert_in_use(0, "both did their work");
}

/// A clock whose owner stops waiting as soon as it is asked to pause.
#[derive(Default)]
struct Impatient(ManualClock, AtomicBool);

impl Clock for Impatient {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn pause(&self, _: Duration) {
        self.1.store(true, SeqCst);
    }

    fn is_interrupted(&self) -> bool {
        self.1.load(SeqCst)
    }

    fn within(&self, limit: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        self.0.within(limit, work)
    }
}

fn bad_luck_a_release_that_is_interrupted_opens_the_gate(ground: &Ground) {
    let clock = Arc::new(Impatient::default());
    let releaser = ground.releaser_with(Arc::new(ground.device.clone()), clock);
    releaser.add_pool(&ground.pool);
    drop(ground.block(24));
    // Time stands still, so only the interruption ends the wait for work.
    let pass = releaser.gate().enter().into_owned();
    let ask = || Request::new("all", Ladder::whole());
    assert_eq!(releaser.release(ask()).verdict, Verdict::Busy);
    assert!(releaser.gate().state().open);
    drop(pass);
    let receipt = releaser.release(ask());
    assert!(receipt.rungs.is_empty(), "nothing new is begun: {receipt}");
    assert!(releaser.gate().state().open);
    ground.assert_in_use(24, "and nothing was touched");
    ground.releaser.empty_cache();
    ground.assert_in_use(0, "it is there for the next");
}

fn bad_luck_a_release_of_what_sleeps_wakes_nothing(ground: &Ground) {
    let hands = Hands::new(ground);
    let weights = ground.block(24);
    hands.write(&ground.pool, &weights, 6);
    let ask = || Request::new("idle", Ladder::idle()).to(Target::Floor);
    let receipt = ground.releaser.release(ask());
    assert!(receipt.rung("fallback").is_none(), "{receipt}");
    ground.assert_in_use(0, "asleep");
    for receipt in [ground.releaser.release(ask().every_rung()), ground.releaser.empty_cache()] {
        assert_eq!(receipt.freed_bytes, Some(0), "{receipt}");
        ground.assert_in_use(0, "still asleep");
    }
    ground.pool.wake(Scope::Whole).unwrap();
    hands.assert_is_whole(&ground.pool, &weights, 6);
}
