//! Forks: a child has no use of its parent's pool, and a pool of its own works.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use lowtide_device::{Bytes, Device, HostOptions};
use lowtide_pool::{Error, Limit, Pool, Result, Scope, SleepPolicy, StreamId, Tag};
use lowtide_testing::forks::{beside, in_child};

const STREAM: StreamId = StreamId(0);

fn pool() -> Pool {
    let options = HostOptions { budget: Some(Bytes::mib(32)), small_pages: true };
    Pool::new(&Device::host(options).unwrap()).unwrap()
}

fn is_refused<T>(outcome: Result<T>) -> bool {
    matches!(outcome.err(), Some(Error::Device(lowtide_device::Error::Forked)))
}

// Every call that can refuse does.
fn refusals(pool: &Pool, block: &lowtide_pool::Block) -> Vec<bool> {
    let (tag, address) = (Tag::default(), block.address());
    vec![
        is_refused(pool.health()),
        is_refused(pool.alloc(Bytes(1), STREAM, tag)),
        is_refused(pool.alloc(Bytes::mib(5), STREAM, tag)),
        is_refused(pool.block(Bytes(1))),
        is_refused(pool.free(address, STREAM)),
        is_refused(pool.place_of(address)),
        is_refused(pool.tag("new", SleepPolicy::Keep)),
        is_refused(pool.phase(tag)),
        is_refused(pool.sleep(Scope::Whole)),
        is_refused(pool.sleep_quiet(Scope::Whole, Limit::NONE)),
        is_refused(pool.wake(Scope::Whole)),
        is_refused(pool.trim(Bytes::ZERO)),
        is_refused(pool.start_recording()),
        is_refused(pool.stop_recording()),
        is_refused(block.fill(9)),
        is_refused(block.read(Bytes::ZERO, &mut [0])),
        is_refused(Pool::new(pool.device())),
        pool.counts().physical == Bytes::ZERO && pool.snapshot().tags.is_empty(),
        !format!("{pool:?} {block:?}").is_empty(),
    ]
}

fn assert_holds(block: &lowtide_pool::Block, byte: u8) {
    let mut bytes = vec![0; block.size().as_usize()];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|found| *found == byte), "the child changed the parent's bytes");
}

#[test]
fn a_child_is_given_no_block_of_its_parents_pool() {
    let pool = pool();
    let block = pool.block(Bytes::mib(4)).unwrap();
    block.fill(7).unwrap();
    drop(pool.block(Bytes::mib(5)).unwrap());
    let before = pool.device().usage().unwrap();
    let mut own = Some((pool.clone(), block));
    in_child(|| {
        let (pool, block) = own.take().unwrap();
        let mut checks = refusals(&pool, &block);
        let new = self::pool();
        let here = new.block(Bytes::mib(4)).unwrap();
        here.fill(3).unwrap();
        checks.push(new.sleep(Scope::Whole).is_ok() && new.wake(Scope::Whole).is_ok());
        let mut byte = [0];
        checks.push(here.read(Bytes::mib(2), &mut byte).is_ok() && byte == [3]);
        drop((block, pool));
        drop((here, new));
        checks
    });
    let (_, block) = own.unwrap();
    assert_eq!(pool.device().usage().unwrap(), before);
    assert_holds(&block, 7);
    pool.sleep(Scope::Whole).unwrap();
    in_child(|| refusals(&pool, &block));
    pool.wake(Scope::Whole).unwrap();
    assert_holds(&block, 7);
    pool.check();
}

#[test]
fn a_child_does_not_wait_for_a_turn_that_was_under_way() {
    let pool = pool();
    let block = pool.block(Bytes::mib(16)).unwrap();
    block.fill(7).unwrap();
    let (begun, forked) = (Barrier::new(2), Barrier::new(2));
    let is_first = AtomicBool::new(true);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| {
            let go_on = || {
                if is_first.swap(false, SeqCst) {
                    begun.wait();
                    forked.wait();
                }
                true
            };
            pool.sleep_quiet(Scope::Whole, Limit::new(&go_on))
        });
        begun.wait();
        in_child(|| refusals(&pool, &block));
        forked.wait();
        sleeping.join().unwrap().unwrap();
    });
    pool.wake(Scope::Whole).unwrap();
    assert_holds(&block, 7);
}

// Whatever lock a thread of the parent has at the moment of the fork, it has for ever in the child.
#[test]
fn a_child_hangs_on_no_lock_of_its_parents_pool() {
    let pool = pool();
    let block = Arc::new(pool.block(Bytes::mib(2)).unwrap());
    let noise = || drop(pool.block(Bytes(4096)).unwrap());
    beside(noise, || {
        for _ in 0..50 {
            let copies = (pool.clone(), Arc::clone(&block));
            in_child(|| {
                let checks = refusals(&pool, &block);
                drop(copies);
                checks
            });
        }
    });
    pool.check();
}
