//! Backups when the host has little memory: two sleeps are never both promised the last of it. Each
//! test runs in a process of its own, which pretends that the machine is small.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;

use lowtide_device::{Bytes, Device, Error as DeviceError, headroom};
use lowtide_pool::{Error, Limit, Phase, Policy, Pool, Result, Scope, SleepReport, Tag};
use lowtide_testing::role::{self, Other, SmallMachine};

use crate::written::{Written, check, host, pool_on};

/// The test that plays the roles.
const PLAYER: &str = "host_memory::other";
const SIZE: Bytes = Bytes::mib(24);
/// Enough for one backup and what carries it, not for two.
const AVAILABLE: Bytes = Bytes::mib(256 + 44);

#[test]
fn other() {
    role::play(|role, root| {
        headroom::pretend(root);
        match role {
            "threads" => threads(),
            "sleeper" => sleeper(),
            "beside" => beside(root),
            "failures" => failures(),
            role => panic!("no role {role}"),
        }
    });
}

fn run(role: &str) {
    SmallMachine::new(role, AVAILABLE, PLAYER).run(role);
}

struct Pair {
    _device: Device,
    pool: Pool,
    block: Written,
}

// Plain backups: they take memory only while they are written.
fn pair(seed: u64) -> Pair {
    let device = host(Bytes::mib(32));
    let pool = pool_on(&device, Policy::default().direct_backups(Bytes::ZERO));
    let block = Written::new(&pool, SIZE, Tag::default(), seed);
    Pair { _device: device, pool, block }
}

impl Pair {
    fn assert_refused(&self, slept: Result<SleepReport>) {
        let refused = slept.expect_err("two backups were promised the same memory");
        let Error::Device(DeviceError::NoHostHeadroom { requested, promised, .. }) = &refused
        else {
            panic!("{refused}")
        };
        assert_eq!((*requested, *promised), (SIZE, SIZE));
        assert_eq!(self.pool.phase(Tag::default()).unwrap(), Phase::Awake);
        self.block.assert_is_whole();
        check(&self.pool);
    }

    fn assert_sleeps_and_wakes(&self) {
        self.pool.sleep(Scope::Whole).unwrap();
        self.pool.wake(Scope::Whole).unwrap();
        self.block.assert_is_whole();
        check(&self.pool);
    }
}

// Puts a pool to sleep, and stops once its backups are promised and none of them is written.
fn sleep_and_hold(pair: &Pair, hold: impl FnOnce() + Send) -> Result<SleepReport> {
    let hold = Mutex::new(Some(hold));
    let asked = AtomicBool::new(false);
    let go_on = || {
        // The first question is about waiting or digests; before the first slab everything is promised.
        let promised = matches!(
            headroom::require(Bytes(u64::MAX)),
            Err(DeviceError::NoHostHeadroom { promised, .. }) if promised == SIZE
        );
        if promised && !asked.swap(true, SeqCst) {
            let hold = hold.lock().unwrap().take();
            hold.expect("once")();
        }
        true
    };
    let slept = pair.pool.sleep_within(Scope::Whole, Limit::new(&go_on));
    assert!(asked.load(SeqCst), "the backups were never promised");
    slept
}

fn threads() {
    let (one, two) = (pair(1), pair(2));
    let (ready, is_ready) = channel();
    let (go_on, may_go_on) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            sleep_and_hold(&one, move || {
                ready.send(()).unwrap();
                may_go_on.recv().unwrap();
            })
        });
        is_ready.recv().unwrap();
        two.assert_refused(two.pool.sleep(Scope::Whole));
        go_on.send(()).unwrap();
        first.join().unwrap().unwrap();
    });
    // Nothing is promised any more.
    two.assert_sleeps_and_wakes();
    one.pool.wake(Scope::Whole).unwrap();
    one.block.assert_is_whole();
}

fn sleeper() {
    let one = pair(3);
    let slept = sleep_and_hold(&one, || {
        role::answer("holds");
        let mut order = String::new();
        std::io::stdin().read_line(&mut order).unwrap();
    });
    slept.unwrap();
    role::answer("sleeps");
    // The next sleep is promised memory too, for a moment: not while the other process sleeps.
    let mut order = String::new();
    std::io::stdin().read_line(&mut order).unwrap();
    one.assert_sleeps_and_wakes();
}

fn beside(root: &Path) {
    let two = pair(4);
    let mut sleeper = Other::start(root, PLAYER, "sleeper");
    assert_eq!(sleeper.next_answer(), "holds");
    two.assert_refused(two.pool.sleep(Scope::Whole));
    assert_eq!(sleeper.ask("go on"), "sleeps");
    two.assert_sleeps_and_wakes();
    // One that is killed is promised nothing any more. A new pool: the other has its backup now.
    let (mut killed, three) = (Other::start(root, PLAYER, "sleeper"), pair(5));
    assert_eq!(killed.next_answer(), "holds");
    three.assert_refused(three.pool.sleep(Scope::Whole));
    drop(killed);
    three.assert_sleeps_and_wakes();
}

fn failures() {
    let one = pair(6);
    for stop_after in 0..30 {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let go_on = || asked.fetch_add(1, SeqCst) < stop_after;
        match one.pool.sleep_within(Scope::Whole, Limit::new(&go_on)) {
            Ok(_) => drop(one.pool.wake(Scope::Whole).unwrap()),
            Err(Error::Stopped { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // Every page changes, so that the next sleep has all of them to save.
        one.block.bytes().iter_mut().step_by(1 << 20).for_each(|byte| *byte ^= 2);
        let left = headroom::require(Bytes(u64::MAX)).unwrap_err();
        let DeviceError::NoHostHeadroom { promised, .. } = left else { panic!("{left}") };
        assert_eq!(promised, Bytes::ZERO, "kept by a sleep stopped after {stop_after} questions");
    }
}

#[test]
fn two_pools_are_not_promised_the_same_host_memory() {
    run("threads");
}

#[test]
fn two_processes_are_not_promised_the_same_host_memory() {
    run("beside");
}

#[test]
fn a_sleep_that_is_stopped_keeps_no_host_memory() {
    run("failures");
}
