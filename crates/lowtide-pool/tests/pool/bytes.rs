//! The bytes of a block, read and written from the host.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use lowtide_device::{Bytes, Device};
use lowtide_pool::{
    Block, Error, Fence, Limit, Phase, Policy, Pool, Scope, SleepPolicy, StreamId, Tag, TurnStep,
};
use lowtide_testing::noise::{first_other, noise};

use crate::written::{check, host, in_use, pool_on};

fn read(block: &Block) -> Vec<u8> {
    let mut bytes = vec![0; block.size().as_usize()];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_into_a_block_and_come_back_after_a_sleep() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    // More than is copied at once, and a block that shares its page with another.
    let sizes = [Bytes(1), Bytes(5000), Bytes(Bytes::mib(19).0 + 3)];
    let blocks = sizes.map(|size| {
        let block = pool.block_tagged(size, weights).unwrap();
        let bytes = noise(size.0, size.as_usize());
        block.write(Bytes::ZERO, &bytes).unwrap();
        (block, bytes)
    });
    for _ in 0..2 {
        for (block, bytes) in &blocks {
            assert!(read(block) == *bytes, "{block:?}");
        }
        pool.sleep(Scope::Whole).unwrap();
        assert_eq!(in_use(pool.device()), Bytes::ZERO);
        pool.wake(Scope::Whole).unwrap();
    }
    check(&pool);
}

#[test]
fn a_write_changes_its_range_and_nothing_else() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let [before, block, behind] = [(); 3].map(|()| pool.block(Bytes(2048)).unwrap());
    for block in [&before, &block, &behind] {
        block.fill(7).unwrap();
    }
    block.write(Bytes(100), &[1, 2, 3]).unwrap();
    block.write(Bytes(2047), &[9]).unwrap();
    block.write(Bytes(2048), &[]).unwrap();
    let mut expected = vec![7; 2048];
    expected[100..103].copy_from_slice(&[1, 2, 3]);
    expected[2047] = 9;
    assert_eq!(read(&block), expected);
    let mut some = [0; 4];
    block.read(Bytes(101), &mut some).unwrap();
    assert_eq!(some, [2, 3, 7, 7]);
    for block in [&before, &behind] {
        assert_eq!(read(block), [7; 2048]);
    }
}

#[test]
fn an_access_that_would_leave_its_block_is_refused() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    // The pool rounds up to 128 bytes; what was not asked for is not the caller's.
    let block = pool.block(Bytes(600)).unwrap();
    for (offset, length) in [(600, 1), (599, 2), (0, 601), (u64::MAX, 1), (1000, 0)] {
        let is_refused = |outcome: lowtide_pool::Result<()>| {
            let facts = (Bytes(offset), Bytes(length as u64), Bytes(600));
            matches!(outcome, Err(Error::OutsideBlock { offset, length, size })
                if (offset, length, size) == facts)
        };
        assert!(is_refused(block.write(Bytes(offset), &vec![1; length])), "{offset} {length}");
        assert!(is_refused(block.read(Bytes(offset), &mut vec![1; length])), "{offset} {length}");
    }
    assert_eq!(
        Error::OutsideBlock { offset: Bytes(599), length: Bytes(2), size: Bytes(600) }.to_string(),
        "bytes 599..601 are not in the block, which has 600"
    );
}

#[test]
fn the_bytes_of_a_tag_that_sleeps_are_out_of_reach() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let block = pool.block(Bytes(600)).unwrap();
    block.fill(5).unwrap();
    pool.sleep(Scope::Whole).unwrap();
    let outcomes =
        [block.write(Bytes::ZERO, &[1]), block.read(Bytes::ZERO, &mut [0]), block.fill(1)];
    for outcome in outcomes {
        assert!(matches!(&outcome, Err(Error::Asleep { tag }) if tag == "default"), "{outcome:?}");
    }
    pool.wake(Scope::Whole).unwrap();
    assert_eq!(read(&block), [5; 600]);
}

#[test]
fn a_device_that_only_counts_has_no_bytes() {
    let (device, _) = Device::dry_run(Bytes::mib(32));
    let pool = Pool::new(&device).unwrap();
    let block = pool.block(Bytes(600)).unwrap();
    assert!(matches!(block.fill(1), Err(Error::Device(_))));
    pool.check();
    // The job has ended all the same: a trim and a sleep of what may be lost go through.
    drop(block);
    pool.sleep(Scope::Whole).unwrap();
}

/// A stream that passes when it is let, and counts who waits for it.
#[derive(Default)]
struct Held {
    waiting: AtomicUsize,
    let_go: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    fn let_go(&self) {
        *self.let_go.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Fence for Held {
    fn has_passed(&self, _stream: StreamId) -> bool {
        *self.let_go.lock().unwrap()
    }

    fn wait(&self, _stream: StreamId) -> lowtide_device::Result<()> {
        self.waiting.fetch_add(1, SeqCst);
        let held = self.changed.wait_while(self.let_go.lock().unwrap(), |let_go| !*let_go);
        drop(held.unwrap());
        Ok(())
    }
}

// A write waits for the block's stream; a sleep waits for the write, or is stopped meanwhile.
#[test]
fn a_sleep_waits_for_a_write_and_its_limit_stops_the_waiting() {
    let device = host(Bytes::mib(32));
    let fence = Arc::new(Held::default());
    let pool = Pool::builder(&device).fence(fence.clone()).build().unwrap();
    let block = pool.block_on(Bytes::mib(3), StreamId(4), Tag::default()).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| block.fill(3));
        while fence.waiting.load(SeqCst) == 0 {
            thread::yield_now();
        }
        let asked = AtomicUsize::new(0);
        let limit = || {
            assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Turning, "it has begun");
            asked.fetch_add(1, SeqCst) < 3
        };
        let stopped = pool.sleep_quiet(Scope::Whole, Limit::new(&limit)).unwrap_err();
        assert!(matches!(stopped, Error::Stopped { step: TurnStep::Waiting, .. }), "{stopped}");
        assert_eq!(asked.load(SeqCst), 4);
        assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
        pool.check();
        let sleeper = scope.spawn(|| pool.sleep_quiet(Scope::Whole, Limit::NONE));
        while pool.phase(Tag::default()).unwrap() == Phase::Awake {
            thread::yield_now();
        }
        fence.let_go();
        writer.join().unwrap().unwrap();
        assert_eq!(sleeper.join().unwrap().unwrap().copied, Bytes::mib(4), "after the write");
    });
    pool.wake(Scope::Whole).unwrap();
    assert_eq!(first_other(&read(&block), 3), None);
    check(&pool);
}
