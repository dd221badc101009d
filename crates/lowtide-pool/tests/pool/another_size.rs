//! Blocks that are replaced by blocks of other sizes: what that costs in driver calls, and where the memory
//! that it takes goes when somebody else needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{Fence, Policy, Pool, PoolCounts, Scope, SleepPolicy, StreamId, Tag};
use lowtide_testing::Dice;

use crate::pool::Says;

const STREAM: StreamId = StreamId(1);
const ROUNDS: usize = 8;
const COUNT: usize = 4_000;

/// Sizes from 64 KiB to 112 MiB, as batches of varying length have them.
fn ragged(dice: &mut Dice, count: usize) -> Vec<u64> {
    let size = |_| {
        (64 << dice.roll(7)) * (64 + dice.roll(64)) / 64
            * [1024, 4096, 14336][dice.roll(3) as usize]
    };
    (0..count).map(size).collect()
}

/// Live blocks, each of which is replaced by one of another's size in every round.
struct Replaced {
    pool: Pool,
    sizes: Vec<u64>,
    live: Vec<Address>,
    order: Vec<usize>,
}

impl Replaced {
    fn new(pool: Pool, count: usize) -> Replaced {
        let mut dice = Dice::new(7);
        let sizes = ragged(&mut dice, count);
        let alloc = |size: &u64| pool.alloc(Bytes(*size), STREAM, Tag::default()).unwrap();
        let live = sizes.iter().map(alloc).collect();
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, dice.roll(last as u64 + 1) as usize);
        }
        Replaced { pool, sizes, live, order }
    }

    /// Replaces every block. Returns the driver calls that this took.
    fn round(&mut self, round: usize) -> u64 {
        let (calls, count) = (self.pool.device().calls(), self.order.len());
        for visit in 0..count {
            let (slot, like) = (self.order[visit], self.order[(visit + 1 + round) % count]);
            self.pool.free(self.live[slot], STREAM).unwrap();
            let size = Bytes(self.sizes[like]);
            self.live[slot] = self.pool.alloc(size, STREAM, Tag::default()).unwrap();
        }
        self.pool.check();
        self.pool.device().calls() - calls
    }
}

#[test]
fn a_stream_that_has_passed_makes_no_driver_calls_that_none_would_make() {
    let play = |fence: Option<Arc<dyn Fence>>| {
        let (device, _) = Device::dry_run(Bytes::gib(1024));
        let builder = Pool::builder(&device);
        let builder = if let Some(fence) = fence { builder.fence(fence) } else { builder };
        let mut blocks = Replaced::new(builder.build().unwrap(), 1_000);
        let calls: Vec<u64> = (0..ROUNDS).map(|round| blocks.round(round)).collect();
        (calls, blocks.pool.counts().physical_peak)
    };
    assert_eq!(
        play(Some(Arc::new(Says(|| true)))),
        play(None),
        "driver calls by round, physical peak"
    );
}

/// A fence for one stream, which has passed or not as the test says.
#[derive(Default)]
struct Switch(AtomicBool);

impl Fence for Switch {
    fn has_passed(&self, _stream: StreamId) -> bool {
        self.0.load(Relaxed)
    }

    fn wait(&self, _stream: StreamId) -> lowtide_device::Result<()> {
        self.0.store(true, Relaxed);
        Ok(())
    }
}

// What a stream has passed stays its own, and goes where it is needed. Joined with a neighbour that was freed
// later, it is in use again as far as anybody knows.
#[test]
fn a_block_that_its_stream_has_passed_is_in_use_again_with_a_later_neighbour() {
    let (device, _) = Device::dry_run(Bytes::gib(1));
    let fence = Arc::new(Switch::default());
    let pool = Pool::builder(&device).fence(Arc::clone(&fence) as Arc<dyn Fence>).build().unwrap();
    let alloc = |mib, stream| pool.alloc(Bytes::mib(mib), stream, Tag::default()).unwrap();
    let (first, second, third) = (alloc(16, STREAM), alloc(16, STREAM), alloc(16, STREAM));
    pool.free(first, STREAM).unwrap();
    fence.0.store(true, Relaxed);
    // Nothing cached fits, so the fence is asked.
    let large = alloc(64, STREAM);
    fence.0.store(false, Relaxed);
    assert_eq!(alloc(16, StreamId(2)), first, "stream 1 has passed it");
    pool.free(first, STREAM).unwrap();
    fence.0.store(true, Relaxed);
    let larger = alloc(128, STREAM);
    fence.0.store(false, Relaxed);
    pool.free(second, STREAM).unwrap();
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO, "the two are one block now");
    assert_ne!(alloc(16, StreamId(2)), first, "which stream 1 may be using");
    assert_eq!(alloc(32, STREAM), first, "its own stream may have both");
    for block in [first, third, large, larger] {
        pool.free(block, STREAM).unwrap();
    }
    fence.0.store(true, Relaxed);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.counts().physical, Bytes::mib(16), "stream 2 has a block");
    pool.check();
}

/// A device of this many thousandths of the memory that [`COUNT`] blocks take.
fn device(thousandths: u64) -> Device {
    let live: u64 = ragged(&mut Dice::new(7), COUNT).iter().sum();
    Device::dry_run(Bytes((live / 1000 * thousandths).next_multiple_of(2 << 20))).0
}

fn fenced(device: &Device, policy: Policy) -> Pool {
    Pool::builder(device).policy(policy).fence(Arc::new(Says(|| true))).build().unwrap()
}

fn free_thousandths(device: &Device) -> u64 {
    let usage = device.usage().unwrap();
    usage.free.0 * 1000 / device.info().total.0
}

#[test]
fn with_a_fifth_of_the_device_free_other_sizes_call_the_driver_once_in_a_hundred_times_at_most() {
    let device = device(1250);
    let mut blocks = Replaced::new(fenced(&device, Policy::default()), COUNT);
    assert_eq!(free_thousandths(&device) / 10, 19, "a fifth is free");
    let calls: Vec<u64> = (0..12).map(|round| blocks.round(round)).collect();
    let settled: u64 = calls[6..].iter().sum();
    assert!(settled <= (6 * COUNT / 100) as u64, "driver calls by round: {calls:?}");
    assert!(free_thousandths(&device) >= 50, "a twentieth is left to others");
    let tight = Policy::default().numbers(|numbers| numbers.spare_thousandths = 0);
    drop(blocks);
    let mut moving = Replaced::new(fenced(&device, tight), COUNT);
    let moved: u64 = (0..12).map(|round| moving.round(round)).skip(6).sum();
    assert!(moved > 10 * settled.max(1), "without spare memory chunks move: {moved}, {settled}");
}

#[test]
fn where_the_device_has_little_free_memory_stays_as_tight_as_without_a_look_at_it() {
    let play = |policy: Policy| {
        let device = device(1050);
        let mut blocks = Replaced::new(fenced(&device, policy), COUNT);
        let calls: Vec<u64> = (0..4).map(|round| blocks.round(round)).collect();
        (calls, blocks.pool.counts())
    };
    assert_eq!(
        play(Policy::default()),
        play(Policy::default().numbers(|numbers| numbers.spare_thousandths = 0))
    );
}

#[test]
fn memory_that_was_to_spare_goes_back_with_a_trim_and_a_sleep() {
    let device = device(1250);
    let mut blocks = Replaced::new(fenced(&device, Policy::default()), COUNT);
    (0..6).for_each(|round| _ = blocks.round(round));
    let counts = blocks.pool.counts();
    assert!(counts.physical.0 > counts.live_peak.0 / 100 * 107, "{counts:?}");
    let given_back = blocks.pool.trim(Bytes::ZERO).unwrap();
    assert!(given_back.0 > counts.cached().0 / 2, "{given_back} of {}", counts.cached());
    // What another took meanwhile is not to spare.
    let free = device.usage().unwrap().free;
    let taken = device.create(Bytes(free.0 / 4 * 3 / (2 << 20) * (2 << 20))).unwrap();
    let left = blocks.pool.counts().physical;
    (6..8).for_each(|round| _ = blocks.round(round));
    let PoolCounts { physical, live_peak, .. } = blocks.pool.counts();
    assert!(physical <= left.max(live_peak + Bytes(live_peak.0 / 16)), "{physical} after {left}");
    drop(taken);
    (8..14).for_each(|round| _ = blocks.round(round));
    let again = blocks.pool.counts().physical;
    assert!(again > physical, "{again} after {physical}: it is to spare again");
    blocks.pool.set_policy(Tag::default(), SleepPolicy::Discard).unwrap();
    blocks.pool.sleep(Scope::Whole).unwrap();
    assert_eq!(device.usage().unwrap().in_use(), Bytes::ZERO);
}

#[test]
fn a_pool_without_room_takes_what_its_neighbours_cache() {
    let (device, _) = Device::dry_run(Bytes::mib(128));
    let (one, other) = (Pool::new(&device).unwrap(), Pool::new(&device).unwrap());
    let elsewhere = Device::dry_run(Bytes::mib(128)).0;
    let far = Pool::new(&elsewhere).unwrap();
    let kept = one.block(Bytes::mib(20)).unwrap();
    for pool in [&one, &far] {
        drop(pool.block(Bytes::mib(80)).unwrap());
    }
    let block = other.block(Bytes::mib(100)).unwrap();
    assert_eq!(one.counts().physical, kept.size(), "what is cached went");
    assert_eq!(far.counts().physical, Bytes::mib(80), "another device is no neighbour");
    let refused = other.block(Bytes::mib(20)).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    drop(block);
    for pool in [&one, &other, &far] {
        pool.check();
    }
}
