//! Limits: a caller stops a sleep, a wake or an allocation, and everything is as it was before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use lowtide_device::{Bytes, Device};
use lowtide_pool::{
    Block, Error, Limit, Phase, Policy, Pool, PressureAnswer, Scope, SleepPolicy, Tag, TurnStep,
};
use lowtide_testing::noise::noise;

use lowtide_testing::is_long_run;

use crate::written::{STREAM, Written, check, check_whole, host, in_use, pool_on, wake_whole};

/// Says to stop when it is asked for the so-manieth time; counts.
struct Countdown {
    asked: AtomicUsize,
    most: usize,
}

impl Countdown {
    fn new(most: usize) -> Countdown {
        Countdown { asked: AtomicUsize::new(0), most }
    }

    fn go_on(&self) -> bool {
        self.asked.fetch_add(1, SeqCst) < self.most
    }
}

/// The size of the parts in which blocks are read and compared.
const PART: usize = 256 << 10;

/// A block whose bytes are known.
struct Content {
    block: Block,
    bytes: Vec<u8>,
}

impl Content {
    fn new(pool: &Pool, mib: u64, tag: Tag) -> Content {
        let mut content =
            Content { block: pool.block_tagged(Bytes::mib(mib), tag).unwrap(), bytes: Vec::new() };
        content.change(mib);
        content
    }

    // Another row of bytes for every seed.
    fn change(&mut self, seed: u64) {
        self.bytes = noise(seed, self.block.size().as_usize());
        self.block.write(Bytes::ZERO, &self.bytes).unwrap();
    }

    fn assert_is_whole(&self) {
        // In parts that stay in the processor's cache.
        let mut buffer = vec![0; PART];
        for (index, part) in self.bytes.chunks(PART).enumerate() {
            let (at, found) = (index * PART, &mut buffer[..part.len()]);
            self.block.read(Bytes(at as u64), found).unwrap();
            assert!(found == part, "{:?} has other bytes from {at} on", self.block);
        }
    }
}

/// A pool with content of every policy, in several chunks and with backups of both kinds.
struct World {
    device: Device,
    pool: Pool,
    cache: Tag,
    saved: Vec<Content>,
    lost: Vec<Content>,
}

impl World {
    fn new(policy: Policy) -> World {
        let device = host(Bytes::mib(64));
        let pool = pool_on(&device, policy);
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let saved = [(10, weights), (5, Tag::default()), (3, weights)]
            .map(|(mib, tag)| Content::new(&pool, mib, tag));
        let lost = [6, 5].map(|mib| Content::new(&pool, mib, cache));
        World { device, pool, cache, saved: saved.into(), lost: lost.into() }
    }

    fn change(&mut self, seed: usize) {
        for (content, number) in self.saved.iter_mut().zip(0..) {
            content.change(seed as u64 * 100 + number);
        }
    }

    fn phases(&self) -> Vec<Phase> {
        self.pool.snapshot().tags.iter().map(|tag| tag.phase).collect()
    }

    fn assert_awake(&self) {
        assert_eq!(self.phases(), [Phase::Awake; 3]);
        self.saved.iter().for_each(Content::assert_is_whole);
        check(&self.pool);
    }
}

fn policies() -> impl Iterator<Item = Policy> {
    let direct = [Bytes::ZERO, Bytes::mib(8), Bytes(u64::MAX)];
    let all = direct.map(|bytes| Policy::default().direct_backups(bytes));
    all.into_iter().flat_map(|policy| [true, false].map(|keep| policy.keep_backups(keep)))
}

fn stopped(error: &Error) -> (TurnStep, Bytes, Bytes) {
    let Error::Stopped { step, done, total } = error else { panic!("{error}") };
    assert!(done <= total, "{error}");
    (*step, *done, *total)
}

// Each time at another question, until there are no more; at each third with each policy in a short run.
#[test]
fn a_sleep_that_is_stopped_at_any_point_leaves_everything_awake() {
    let mut seen = BTreeSet::new();
    for (first, policy) in policies().enumerate() {
        let mut world = World::new(policy);
        let (first, step) = if is_long_run() { (0, 1) } else { (first % 3, 3) };
        for most in (first..).step_by(step) {
            world.change(most);
            let countdown = Countdown::new(most);
            let limit = || countdown.go_on();
            let outcome = world.pool.sleep_quiet(Scope::Whole, Limit::new(&limit));
            let Err(error) = outcome else {
                assert!(most > 6, "{most} questions, {policy:?}");
                break;
            };
            let (step, done, total) = stopped(&error);
            seen.insert(step.to_string());
            let text = error.to_string();
            assert!(text.starts_with(&format!("stopped by its limit while {step}")), "{text}");
            assert_eq!(text.contains(&format!("{done} of {total}")), total > Bytes::ZERO, "{text}");
            world.assert_awake();
            // What may be lost was not given up either.
            world.lost.iter().for_each(Content::assert_is_whole);
        }
        assert_eq!(in_use(&world.device), Bytes::ZERO);
        world.pool.wake(Scope::Whole).unwrap();
        world.assert_awake();
    }
    let steps = [TurnStep::Planning, TurnStep::CopyingOut, TurnStep::Unmapping];
    assert_eq!(seen, steps.map(|step| step.to_string()).into());
}

#[test]
fn a_wake_that_is_stopped_at_any_point_leaves_everything_asleep() {
    let mut seen = BTreeSet::new();
    for policy in policies() {
        let world = World::new(policy);
        world.pool.sleep(Scope::Whole).unwrap();
        let asleep = world.pool.counts();
        for most in 0.. {
            let countdown = Countdown::new(most);
            let limit = || countdown.go_on();
            let outcome = world.pool.wake_within(Scope::Whole, Limit::new(&limit));
            let Err(error) = outcome else {
                assert!(most > 6, "{most} questions, {policy:?}");
                break;
            };
            seen.insert(stopped(&error).0.to_string());
            assert_eq!(world.phases(), [Phase::Asleep; 3]);
            let counts = world.pool.counts();
            assert_eq!((counts.backup, counts.asleep), (asleep.backup, asleep.live), "{most}");
            assert_eq!((counts.physical, in_use(&world.device)), Default::default(), "{most}");
            world.pool.check();
        }
        world.assert_awake();
    }
    let steps = [TurnStep::Mapping, TurnStep::CopyingIn, TurnStep::Checking];
    assert_eq!(seen, steps.map(|step| step.to_string()).into());
}

#[test]
fn a_sleep_with_nothing_to_save_is_stopped_too() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let lost = Written::new(&pool, Bytes::mib(20), cache, 1);
    for most in 0.. {
        let countdown = Countdown::new(most);
        let limit = || countdown.go_on();
        let Err(error) = pool.sleep_quiet(Scope::Whole, Limit::new(&limit)) else { break };
        let chunk = Bytes::mib(4);
        let facts = (TurnStep::Unmapping, Bytes(chunk.0 * most as u64), Bytes::mib(20));
        assert_eq!(stopped(&error), facts);
        check_whole(&pool, &[lost]);
    }
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
}

// A callback that is asked for room, and waits in the middle of a wake or an allocation.
struct Middle {
    is_there: AtomicBool,
    may_go: AtomicBool,
}

impl Middle {
    fn new() -> Arc<Middle> {
        Arc::new(Middle { is_there: AtomicBool::new(false), may_go: AtomicBool::new(false) })
    }

    fn stay(&self) {
        self.is_there.store(true, SeqCst);
        while !self.may_go.load(SeqCst) {
            thread::yield_now();
        }
    }

    fn wait_until_there(&self) {
        while !self.is_there.load(SeqCst) {
            thread::yield_now();
        }
    }
}

// One thread is in the middle of a sleep, because its limit does not answer; others wait for it.
#[test]
fn whoever_waits_for_a_turn_can_be_stopped() {
    let world = World::new(Policy::default().wake_on_alloc(true));
    let middle = Middle::new();
    let hold = || {
        middle.stay();
        true
    };
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| world.pool.sleep_quiet(Scope::Whole, Limit::new(&hold)));
        middle.wait_until_there();
        assert_eq!(world.phases(), [Phase::Turning; 3]);
        let outcome = |wait: &dyn Fn(Limit<'_>) -> lowtide_pool::Result<()>| {
            let countdown = Countdown::new(2);
            let limit = || countdown.go_on();
            let error = wait(Limit::new(&limit)).unwrap_err();
            assert_eq!(stopped(&error), (TurnStep::Waiting, Bytes::ZERO, Bytes::ZERO));
            assert_eq!(countdown.asked.load(SeqCst), 3, "and not again");
            assert!(!error.to_string().contains(" of "), "{error}");
        };
        let (pool, blocks) = (&world.pool, world.pool.counts().blocks);
        outcome(&|limit| pool.sleep_quiet(Scope::Whole, limit).map(drop));
        outcome(&|limit| pool.wake_within(Scope::Whole, limit).map(drop));
        outcome(&|limit| pool.alloc_within(Bytes(9), STREAM, world.cache, limit).map(drop));
        assert_eq!(pool.counts().blocks, blocks, "nothing was allocated");
        middle.may_go.store(true, SeqCst);
        assert_eq!(sleeper.join().unwrap().unwrap().tags, 3, "it was not disturbed");
    });
    world.pool.wake(Scope::Whole).unwrap();
    world.assert_awake();
}

#[test]
fn an_allocation_that_wakes_its_tag_is_stopped_with_the_wake() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default().wake_on_alloc(true));
    let block = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
    pool.sleep(Scope::Whole).unwrap();
    let countdown = Countdown::new(2);
    let limit = || countdown.go_on();
    let error = pool.alloc_within(Bytes(1), STREAM, Tag::default(), Limit::new(&limit));
    stopped(&error.unwrap_err());
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
    assert_eq!(pool.counts().blocks, 1);
    pool.alloc_within(Bytes(1), STREAM, Tag::default(), Limit::new(&|| true)).unwrap();
    check_whole(&pool, &[block]);
}

// Who is asked for room says for ever that there will be some.
#[test]
fn a_wake_or_an_allocation_that_waits_for_room_is_stopped() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let other = pool.tag("other", SleepPolicy::Offload).unwrap();
    let block = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Tags(&[other])).unwrap();
    let taken = pool.device().create(Bytes::mib(16)).unwrap();
    let rounds = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&rounds);
    let _subscription = pool.on_pressure(move |_| {
        *counted.lock().unwrap() += 1;
        PressureAnswer::Retry
    });
    let limit = || *rounds.lock().unwrap() < 3;
    let waking = pool.wake_within(Scope::Whole, Limit::new(&limit)).map(drop);
    assert_eq!(stopped(&waking.unwrap_err()).0, TurnStep::Waiting);
    *rounds.lock().unwrap() = 0;
    let allocating = pool.alloc_within(Bytes::mib(20), STREAM, other, Limit::new(&limit));
    assert_eq!(stopped(&allocating.unwrap_err()).0, TurnStep::Waiting);
    assert_eq!(*rounds.lock().unwrap(), 3);
    drop(taken);
    wake_whole(&pool, &[block]);
}

#[test]
fn a_limit_that_panics_stops_and_may_look_at_the_pool() {
    let mut world = World::new(Policy::default());
    for most in [0, 3, 7] {
        world.change(most);
        let countdown = Countdown::new(most);
        let limit = || {
            world.pool.snapshot();
            assert!(countdown.go_on(), "a panic of the limit, which the test wants");
            true
        };
        let outcome = world.pool.sleep_quiet(Scope::Whole, Limit::new(&limit));
        stopped(&outcome.unwrap_err());
        world.assert_awake();
    }
    let world = &world;
    assert_eq!(world.pool.sleep_quiet(Scope::Whole, Limit::new(&|| true)).unwrap().tags, 3);
}
