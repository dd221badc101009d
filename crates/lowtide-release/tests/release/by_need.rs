//! Releases that leave out what would free nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_device::Bytes;
use lowtide_pool::{Block, Pool};
use lowtide_release::{
    Allocator, AllocatorCounts, Failure, Hook, HookPoint, Ladder, LedgerLine, ManualClock, Receipt,
    Releaser, Request, RungOutcome, Stages, Verdict,
};

use crate::world::host;

/// A pool that counts what it hands out, as a framework's allocator does.
#[derive(Clone)]
struct Counting {
    pool: Pool,
    calls: Arc<AtomicU64>,
}

impl Allocator for Counting {
    fn name(&self) -> String {
        "counting".to_owned()
    }

    fn counts(&self) -> AllocatorCounts {
        Allocator::counts(&self.pool)
    }

    fn lines(&self) -> Vec<LedgerLine> {
        Allocator::lines(&self.pool)
    }

    fn activity(&self) -> Option<(u64, u64)> {
        Some((self.calls.load(SeqCst), 0))
    }

    fn trim(&self) -> Result<Bytes, Failure> {
        Allocator::trim(&self.pool)
    }
}

/// A device whose collector takes a second for everything, and notes what it was asked for.
struct World {
    allocator: Counting,
    releaser: Releaser,
    clock: ManualClock,
    collections: Arc<Mutex<Vec<&'static str>>>,
    /// Blocks that only a full collection frees.
    garbage: Arc<Mutex<Vec<Block>>>,
    finds_nothing: Arc<AtomicBool>,
}

impl World {
    fn new() -> World {
        let device = host(64);
        let pool = Pool::new(&device).unwrap();
        let clock = ManualClock::default();
        let releaser = Releaser::new(&device, Arc::new(clock.clone()));
        let allocator = Counting { pool, calls: Arc::default() };
        releaser.add_allocator(Arc::new(allocator.clone())).keep();
        let collections: Arc<Mutex<Vec<&str>>> = Arc::default();
        let garbage: Arc<Mutex<Vec<Block>>> = Arc::default();
        let finds_nothing = Arc::new(AtomicBool::new(true));
        let (noted, dead, time) = (Arc::clone(&collections), Arc::clone(&garbage), clock.clone());
        let hook = Hook::new("collector", move |call| {
            noted.lock().unwrap().push(if call.is_full { "full" } else { "young" });
            if call.is_full {
                time.advance(Duration::from_secs(1));
                dead.lock().unwrap().clear();
            }
            Ok(Vec::new())
        });
        let says = Arc::clone(&finds_nothing);
        let hook = hook.finding_nothing_if(move || Some(says.load(SeqCst)));
        releaser.add_hook(HookPoint::Collect, hook).keep();
        World { allocator, releaser, clock, collections, garbage, finds_nothing }
    }

    fn block(&self, mib: u64) -> Block {
        self.allocator.calls.fetch_add(1, SeqCst);
        self.allocator.pool.block(Bytes::mib(mib)).unwrap()
    }

    /// Empties the cache, and returns what the collector was asked for.
    fn empty(&self) -> (Receipt, Vec<&'static str>) {
        self.collections.lock().unwrap().clear();
        let receipt = self.releaser.empty_cache();
        (receipt, self.collections.lock().unwrap().clone())
    }
}

#[test]
fn where_nothing_has_changed_nothing_is_run_and_the_receipt_says_so() {
    let world = World::new();
    let _model = world.block(4);
    drop(world.block(8));
    let (receipt, collections) = world.empty();
    assert_eq!((receipt.verdict, &*collections), (Verdict::Released, ["full", "full"].as_slice()));
    let (receipt, collections) = world.empty();
    assert_eq!((receipt.verdict, collections.len()), (Verdict::Released, 0), "{receipt}");
    let names: Vec<_> = receipt.rungs.iter().map(|rung| rung.rung.to_string()).collect();
    assert_eq!(names, ["collect", "trim"]);
    for rung in &receipt.rungs {
        let RungOutcome::Skipped { why } = &rung.outcome else { panic!("{rung:?}") };
        assert!(why.contains("nothing was allocated or freed"), "{why}");
    }
    assert_eq!(receipt.claim.unwrap().bytes, Bytes::ZERO);
    assert_eq!(receipt.before, receipt.after, "they are one reading");
    assert_eq!(receipt.after.driver, Some(Bytes::mib(4)));
    assert!(receipt.ledger.is_some());
}

#[test]
fn after_work_young_objects_are_collected_and_more_only_while_that_is_not_enough() {
    let world = World::new();
    world.empty();
    drop(world.block(8));
    let (receipt, collections) = world.empty();
    assert_eq!(
        (receipt.verdict, &*collections),
        (Verdict::Released, ["young", "young"].as_slice())
    );
    assert_eq!(receipt.freed_bytes, Some(8 << 20));
    assert_eq!(world.empty().1.len(), 0, "and then nothing has changed");
    // More is allocated than the last full collection left: it may be garbage.
    world.garbage.lock().unwrap().push(world.block(8));
    let (receipt, collections) = world.empty();
    assert_eq!(collections, ["young", "young", "full", "full"]);
    assert_eq!((receipt.verdict, receipt.freed_bytes), (Verdict::Released, Some(8 << 20)));
    assert_eq!(receipt.rungs.len(), 3, "the short collection is the first of its rungs");
    // What is freed lowers what the next is held to.
    let kept = world.block(8);
    world.empty();
    drop(kept);
    assert_eq!(world.empty().1, ["young", "young"]);
    world.garbage.lock().unwrap().push(world.block(8));
    assert_eq!(world.empty().1, ["young", "young", "full", "full"]);
}

#[test]
fn a_collector_that_has_noticed_something_is_run_although_no_counter_moved() {
    let world = World::new();
    world.garbage.lock().unwrap().push(world.block(8));
    let model = world.garbage.lock().unwrap().pop();
    world.empty();
    *world.garbage.lock().unwrap() = model.into_iter().collect();
    assert_eq!(world.empty().1.len(), 0, "nobody could notice");
    world.finds_nothing.store(false, SeqCst);
    let (receipt, collections) = world.empty();
    assert_eq!(collections, ["full", "full"]);
    assert_eq!(receipt.freed_bytes, Some(8 << 20));
}

#[test]
fn what_a_collector_frees_to_answer_is_in_the_receipt() {
    let world = World::new();
    let young: Arc<Mutex<Vec<Block>>> = Arc::default();
    let dead = Arc::clone(&young);
    let hook = Hook::new("another", |_| Ok(Vec::new())).finding_nothing_if(move || {
        dead.lock().unwrap().clear();
        Some(true)
    });
    world.releaser.add_hook(HookPoint::Collect, hook).keep();
    world.empty();
    young.lock().unwrap().push(world.block(8));
    let pool = world.allocator.pool.clone();
    let (receipt, collections) = world.empty();
    assert_eq!(
        (receipt.verdict, &*collections),
        (Verdict::Released, ["young", "young"].as_slice())
    );
    assert_eq!(receipt.freed_bytes, Some(8 << 20));
    assert_eq!(receipt.before.allocated, Bytes::mib(8));
    assert_eq!(pool.counts().physical, Bytes::ZERO);
}

#[test]
fn nothing_is_hidden_for_ever() {
    let world = World::new();
    let model = world.block(8);
    world.empty();
    world.garbage.lock().unwrap().push(model);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(world.empty().1.len(), 0, "a collection took two seconds: another is too much");
    world.clock.advance(Duration::from_secs(80));
    let (receipt, collections) = world.empty();
    assert_eq!(collections, ["full", "full"], "it is 2% of the time by now");
    assert_eq!(receipt.freed_bytes, Some(8 << 20));
}

#[test]
fn what_a_trim_could_not_return_is_tried_again() {
    let world = World::new();
    drop(world.block(8));
    let request = Request::new("collects only", Ladder::of_names(&["collect".into()]).unwrap());
    let stuck = world.block(8);
    world.releaser.release(request);
    drop(stuck);
    let (receipt, _) = world.empty();
    assert_eq!((receipt.verdict, receipt.freed_bytes), (Verdict::Released, Some(8 << 20)));
}

#[test]
fn a_request_that_does_not_say_so_leaves_nothing_out() {
    let world = World::new();
    world.empty();
    world.collections.lock().unwrap().clear();
    world.releaser.release(Request::new("all", Ladder::cache()));
    assert_eq!(*world.collections.lock().unwrap(), ["full", "full"]);
}

#[test]
fn between_runs_its_other_rungs_and_keeps_its_rate() {
    let world = World::new();
    let stages = Stages::new(&world.releaser);
    let cached: Arc<Mutex<Vec<Block>>> = Arc::default();
    let cache = Arc::clone(&cached);
    let hook = Hook::new("a cache", move |_| {
        cache.lock().unwrap().clear();
        Ok(Vec::new())
    });
    let registration = world.releaser.add_hook(HookPoint::Caches, hook);
    stages.between("one");
    cached.lock().unwrap().push(world.block(8));
    world.empty();
    let receipt = stages.between("two");
    assert_eq!(receipt.freed_bytes, Some(8 << 20), "a cache is cleared although no counter moved");
    drop(registration);
    stages.between("three");
    world.collections.lock().unwrap().clear();
    let receipt = stages.between("four");
    assert!(world.collections.lock().unwrap().is_empty() && receipt.verdict.is_proved());

    let every = Duration::from_secs(5);
    assert!(stages.between_every("five", every).is_none());
    world.clock.advance(every);
    assert!(stages.between_every("six", every).is_some());
    assert!(stages.between_every("seven", every).is_none());
}
