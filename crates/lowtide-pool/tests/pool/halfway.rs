//! Tags that are asleep with some of their memory still on the device: a sleep was stopped, and when what
//! had left was to come back, somebody else had taken its room.

use std::sync::Mutex;
use std::thread;

use lowtide_device::{Bytes, Chunk, Device};
use lowtide_pool::{Error, Limit, Phase, Policy, Pool, Scope, SleepPolicy, Tag};

use crate::written::{PAGE, Written, check, host, in_use, pool_on};

/// A device that is full: a tag that is halfway asleep, one that is awake, and a neighbour.
struct Halfway {
    device: Device,
    pool: Pool,
    tag: Tag,
    blocks: Vec<Written>,
    neighbour: Chunk,
}

impl Halfway {
    fn new(policy: Policy) -> Halfway {
        let device = host(Bytes(5 * PAGE.0));
        let pool = pool_on(&device, policy.numbers(|numbers| numbers.checked_at_once = PAGE));
        let tag = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let of_tag = (0..4).map(|seed| Written::new(&pool, PAGE, tag, seed));
        let mut blocks: Vec<Written> = of_tag.collect();
        blocks.push(Written::new(&pool, PAGE, Tag::default(), 4));
        let neighbour = stopped_halfway(&pool, tag);
        Halfway { device, pool, tag, blocks, neighbour }
    }

    fn assert_is_whole_awake(self) {
        let Halfway { pool, blocks, neighbour, .. } = self;
        drop(neighbour);
        pool.wake(Scope::Whole).unwrap();
        check(&pool);
        blocks.iter().for_each(Written::assert_is_whole);
    }
}

// Stops the sleep of a tag once some of it has left, when a neighbour has taken the room.
fn stopped_halfway(pool: &Pool, tag: Tag) -> Chunk {
    let device = pool.device();
    let (full, neighbour) = (in_use(device), Mutex::new(None));
    // Chunks leave on this thread: while it asks, none is on its way and the kernel's number stands still.
    let this = thread::current().id();
    let go_on = || {
        let mut neighbour = neighbour.lock().unwrap();
        if neighbour.is_none() && thread::current().id() == this {
            let left = full - in_use(device);
            *neighbour = (left > Bytes::ZERO).then(|| device.create(left).unwrap());
        }
        neighbour.is_none()
    };
    let error = pool.sleep_quiet(Scope::Tags(&[tag]), Limit::new(&go_on)).unwrap_err();
    assert!(matches!(error, Error::Stopped { .. }), "{error}");
    assert_eq!((pool.phase(tag).unwrap(), in_use(device)), (Phase::Asleep, full));
    pool.check();
    neighbour.into_inner().unwrap().expect("some of it had left")
}

fn policies() -> impl Iterator<Item = Policy> {
    let direct = [Bytes::ZERO, Bytes(u64::MAX)].into_iter();
    let all = direct.map(|bytes| Policy::default().direct_backups(bytes));
    let all = all.flat_map(|policy| [true, false].map(|keep| policy.keep_backups(keep)));
    all.flat_map(|policy| {
        [policy, policy.packing(true).numbers(|numbers| numbers.compare_each = 1)]
    })
}

#[test]
fn a_sleep_needs_no_room_on_a_full_device() {
    for policy in policies() {
        let halfway = Halfway::new(policy);
        let on_device = in_use(&halfway.device);
        let report = halfway.pool.sleep(Scope::Whole).unwrap();
        let neighbour = halfway.neighbour.size();
        assert_eq!(in_use(&halfway.device), neighbour, "{policy:?}");
        assert_eq!(report.freed, on_device - neighbour, "{policy:?}");
        assert_eq!(halfway.pool.phase(halfway.tag).unwrap(), Phase::Asleep);
        halfway.pool.check();
        halfway.assert_is_whole_awake();
    }
}

#[test]
fn the_rest_of_a_tag_sleeps_alone() {
    for policy in policies() {
        let halfway = Halfway::new(policy);
        halfway.pool.sleep(Scope::Tags(&[halfway.tag])).unwrap();
        assert_eq!(in_use(&halfway.device), PAGE + halfway.neighbour.size());
        halfway.pool.check();
        halfway.assert_is_whole_awake();
    }
}

// Each time at another question, until there are no more.
#[test]
fn the_rest_of_a_tag_may_be_stopped_again_and_nothing_is_lost() {
    for policy in policies().take(2) {
        for most in 0.. {
            let halfway = Halfway::new(policy);
            let asked = Mutex::new(0);
            let go_on = || {
                let mut asked = asked.lock().unwrap();
                *asked += 1;
                *asked <= most
            };
            let slept = halfway.pool.sleep_quiet(Scope::Tags(&[halfway.tag]), Limit::new(&go_on));
            halfway.pool.check();
            assert_eq!(halfway.pool.phase(halfway.tag).unwrap(), Phase::Asleep);
            match slept {
                Err(error) => assert!(matches!(error, Error::Stopped { .. }), "{error}"),
                Ok(_) => assert!(most > 2, "{most} questions, {policy:?}"),
            }
            let is_over = *asked.lock().unwrap() <= most;
            halfway.assert_is_whole_awake();
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_block_of_the_rest_that_was_freed_goes_too() {
    for policy in policies() {
        let mut halfway = Halfway::new(policy);
        for freed in [3, 0] {
            let Written { address, .. } = halfway.blocks.remove(freed);
            halfway.pool.free(address, crate::written::STREAM).unwrap();
        }
        halfway.pool.sleep(Scope::Whole).unwrap();
        assert_eq!(in_use(&halfway.device), halfway.neighbour.size(), "{policy:?}");
        halfway.pool.check();
        halfway.assert_is_whole_awake();
    }
}
