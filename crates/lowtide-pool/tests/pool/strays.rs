//! Stray writes: bytes that change while a sleep is under way.
//!
//! Whenever one comes, the tag wakes with the bytes that were written last, or the sleep fails and
//! everything is awake with every byte right. A tag that cannot wake would be the end of its data.
#![allow(unsafe_code, reason = "writes to blocks by their addresses")]

use std::collections::BTreeMap;
use std::ptr::with_exposed_provenance_mut;
use std::slice;
use std::sync::{Arc, Mutex};

use lowtide_device::{Address, Bytes};
use lowtide_pool::{Error, Limit, Phase, Policy, Pool, Scope, SleepPolicy, Tag};
use lowtide_testing::noise::{close, first_difference, noise};
use lowtide_testing::refusing::{Faults, Moment, device_over};
use lowtide_testing::{Dice, is_long_run};

use crate::written::{PAGE, STREAM, check, host};

/// A block whose bytes are known. The host can write to it at any time while it is on the device.
struct Content {
    address: Address,
    bytes: Vec<u8>,
}

impl Content {
    fn new(pool: &Pool, size: Bytes, tag: Tag, seed: u64) -> Content {
        let address = pool.alloc(size, STREAM, tag).unwrap();
        // Pages of odd seeds pack.
        let bytes = noise(seed, size.as_usize());
        let content = Content { address, bytes: if seed % 2 == 1 { close(bytes) } else { bytes } };
        content.write();
        content
    }

    fn write(&self) {
        // SAFETY: as in `put`, for every byte of the block.
        let to = unsafe { slice::from_raw_parts_mut(pointer(self.address, 0), self.bytes.len()) };
        to.copy_from_slice(&self.bytes);
    }

    fn assert_is_whole(&self, after: &str) {
        // SAFETY: as in `put`, for every byte of the block.
        let found = unsafe { slice::from_raw_parts(pointer(self.address, 0), self.bytes.len()) };
        let wrong = first_difference(found, &self.bytes);
        assert_eq!(wrong, None, "a byte of {:?} is another one, after {after}", self.address);
    }

    // Changes a byte on the device and in what is expected.
    fn change(&mut self, at: usize) {
        self.bytes[at] ^= 0x11;
        put(self.address, at, self.bytes[at]);
    }
}

fn assert_all_whole(contents: &[Content], after: &str) {
    for content in contents {
        content.assert_is_whole(after);
    }
}

fn pointer(address: Address, at: usize) -> *mut u8 {
    with_exposed_provenance_mut(address.0 as usize + at)
}

pub(crate) fn put(address: Address, at: usize, byte: u8) {
    // SAFETY: a byte of a live block of a `host` device, called only while it is mapped and open, by
    // the one thread that runs the device's work or by the test's own between turns.
    unsafe { pointer(address, at).write_volatile(byte) };
}

pub(crate) fn get(address: Address, at: usize) -> u8 {
    // SAFETY: as in `put`.
    unsafe { pointer(address, at).read_volatile() }
}

/// A pool over a device whose work can be meddled with.
struct World {
    faults: Arc<Faults>,
    pool: Pool,
    weights: Tag,
    cache: Tag,
}

impl World {
    fn new(policy: Policy) -> World {
        let faults = Arc::new(Faults::default());
        let device = device_over(&host(Bytes::mib(160)), &faults);
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
        World { faults, pool, weights, cache }
    }

    // Changes a byte after each of the first looks at it, or copies of it; so many.
    fn stray(&self, when: When, times: u64, block: Address, at: usize) {
        let mut left = times;
        self.faults.meddle(move |now| {
            if left > 0 && when.is(now) && now.is_of(block.plus(Bytes(at as u64))) {
                left -= 1;
                put(block, at, get(block, at) ^ 0x11);
            }
        });
    }
}

#[derive(Debug, Clone, Copy)]
enum When {
    Digested,
    CopiedOut,
}

impl When {
    fn is(self, now: Moment<'_>) -> bool {
        match self {
            When::Digested => matches!(now, Moment::Digested(_)),
            When::CopiedOut => matches!(now, Moment::CopiedOut(..)),
        }
    }
}

// Backups of both kinds, kept and not, looked at and not; all chunks looked at together and one by one.
fn policies() -> [Policy; 8] {
    let policy = |direct_backups, keep_backups, check_backups| {
        let policy = Policy::default().packing(false).direct_backups(direct_backups);
        policy.keep_backups(keep_backups).check_backups(check_backups)
    };
    [
        policy(Bytes::ZERO, true, false),
        policy(Bytes::mib(6), true, false),
        policy(Bytes(u64::MAX), false, false),
        policy(Bytes::ZERO, false, true),
        policy(Bytes::mib(6), true, true),
        policy(Bytes::mib(6), true, false).numbers(|numbers| numbers.checked_at_once = PAGE),
        policy(Bytes::mib(6), true, false)
            .packing(true)
            .numbers(|numbers| numbers.compare_each = 1),
        policy(Bytes::ZERO, false, true).packing(true).numbers(|numbers| numbers.compare_each = 0),
    ]
}

const SIZES: [Bytes; 3] = [Bytes::mib(7), Bytes::kib(100), Bytes::mib(3)];

// The bytes that a sleep must not lose, in several chunks of both rooms.
fn contents(world: &World) -> Vec<Content> {
    let contents = SIZES.iter().zip(1..);
    contents.map(|(size, seed)| Content::new(&world.pool, *size, world.weights, seed)).collect()
}

#[test]
fn a_byte_that_changes_during_a_sleep_is_the_one_that_wakes() {
    for (index, policy) in policies().into_iter().enumerate() {
        let changes = [(When::Digested, 1), (When::CopiedOut, 1), (When::Digested, 3)];
        for (kind, (when, times)) in changes.into_iter().enumerate() {
            let bytes = [0, Bytes::mib(3).as_usize(), SIZES[0].as_usize() - 1];
            for (place, at) in bytes.into_iter().enumerate() {
                // One of the bytes for each policy and change, another for the next.
                if !is_long_run() && (index + kind + place) % 3 > 0 {
                    continue;
                }
                let world = World::new(policy);
                let mut contents = contents(&world);
                world.stray(when, times, contents[0].address, at);
                contents[0].bytes[at] ^= 0x11;
                let after = format!("{times} x {when:?}, byte {at}, {policy:?}");
                let slept = world.pool.sleep(Scope::Whole);
                world.faults.leave_alone();
                let slept = slept.unwrap_or_else(|error| panic!("{error} after {after}"));
                world.pool.check();
                let woke = world.pool.wake(Scope::Whole);
                woke.unwrap_or_else(|error| panic!("{error} after {after}"));
                assert_all_whole(&contents, &after);
                assert_eq!(slept.copied_again as u64, times, "after {after}");
                check(&world.pool);
            }
        }
    }
}

#[test]
fn a_page_that_was_not_to_be_copied_is_looked_at_again() {
    for policy in policies().into_iter().filter(|policy| policy.keep_backups) {
        for is_zero in [false, true] {
            let world = World::new(policy);
            let mut contents = contents(&world);
            if is_zero {
                contents[0].bytes.fill(0);
                contents[0].write();
            }
            world.pool.sleep(Scope::Whole).unwrap();
            world.pool.wake(Scope::Whole).unwrap();
            world.stray(When::Digested, 1, contents[0].address, 7_000_000);
            contents[0].bytes[7_000_000] ^= 0x11;
            let slept = world.pool.sleep_quiet(Scope::Whole, Limit::NONE).unwrap();
            world.faults.leave_alone();
            world.pool.wake(Scope::Whole).unwrap();
            assert_all_whole(&contents, "a stray write");
            assert_eq!((slept.copied, slept.copied_again), (Bytes::ZERO, 1), "{policy:?}");
            check(&world.pool);
            // The backup has it now.
            let again = world.pool.sleep(Scope::Whole).unwrap();
            assert_eq!((again.copied, again.copied_again), (Bytes::ZERO, 0));
            world.pool.wake(Scope::Whole).unwrap();
            assert_all_whole(&contents, "another sleep");
        }
    }
}

#[test]
fn a_page_that_keeps_changing_fails_the_sleep_by_name() {
    for policy in policies() {
        for limit in [Limit::NONE, Limit::new(&|| true)] {
            let world = World::new(policy);
            let mut contents = contents(&world);
            let lost = Content::new(&world.pool, Bytes::mib(6), world.cache, 9);
            let (block, at) = (contents[0].address, Bytes::mib(4).as_usize() + 5);
            let first = contents[0].bytes[at];
            world.faults.meddle(move |now| {
                if When::Digested.is(now) && now.is_of(block.plus(Bytes(at as u64))) {
                    put(block, at, get(block, at).wrapping_add(1));
                }
            });
            let refused = world.pool.sleep_within(Scope::Whole, limit).unwrap_err();
            world.faults.leave_alone();
            let Error::KeepsChanging { tag, page, takes } = &refused else { panic!("{refused}") };
            let expected = block.plus(Bytes::mib(4));
            assert_eq!((tag.as_str(), *page, *takes), ("weights", expected, 4), "{refused}");
            for tag in [Tag::default(), world.weights, world.cache] {
                assert_eq!(world.pool.phase(tag).unwrap(), Phase::Awake, "{refused}");
            }
            contents[0].bytes[at] = get(block, at);
            assert_all_whole(&contents, "it failed");
            lost.assert_is_whole("it failed");
            check(&world.pool);
            // The bytes of the first look again: what was saved of them meanwhile does not count.
            contents[0].bytes[at] = first;
            put(block, at, first);
            world.pool.sleep(Scope::Whole).unwrap();
            world.pool.wake(Scope::Whole).unwrap();
            assert_all_whole(&contents, "it was left alone");
            check(&world.pool);
        }
    }
}

#[test]
fn a_page_that_needs_a_backup_after_all_and_gets_none_fails_the_sleep() {
    let world = World::new(Policy::default().backup_most(Some(Bytes::ZERO)));
    let mut zeros = Content::new(&world.pool, Bytes::mib(6), world.weights, 1);
    zeros.bytes.fill(0);
    zeros.write();
    world.stray(When::Digested, 1, zeros.address, 5);
    zeros.bytes[5] ^= 0x11;
    let refused = world.pool.sleep(Scope::Whole).unwrap_err();
    world.faults.leave_alone();
    assert!(matches!(refused, Error::BackupLimit { .. }), "{refused}");
    assert_eq!(world.pool.phase(world.weights).unwrap(), Phase::Awake);
    zeros.assert_is_whole("it failed");
    check(&world.pool);
    zeros.change(5);
    world.pool.sleep(Scope::Whole).unwrap();
    world.pool.wake(Scope::Whole).unwrap();
    zeros.assert_is_whole("it is all zeros again");
}

// Found by the storm: both digests of such a page are the same, and only its backup can tell.
#[test]
fn a_page_that_changed_for_its_copy_and_changed_back_is_found_by_its_backup() {
    for policy in policies() {
        let world = World::new(policy);
        let contents = contents(&world);
        let (block, at) = (contents[0].address, 3);
        let mut moments = [When::Digested, When::CopiedOut].into_iter().peekable();
        world.faults.meddle(move |now| {
            let is_next = |when: &When| when.is(now) && now.is_of(block.plus(Bytes(at as u64)));
            if moments.next_if(is_next).is_some() {
                put(block, at, get(block, at) ^ 0x11);
            }
        });
        let slept = world.pool.sleep(Scope::Whole).unwrap();
        world.faults.leave_alone();
        let woke = world.pool.wake(Scope::Whole);
        // A comparison of what was packed finds it, too.
        let is_found = policy.check_backups || policy.packing;
        assert_eq!(slept.copied_again, usize::from(is_found), "{policy:?}");
        if is_found {
            woke.unwrap();
            assert_all_whole(&contents, "a page changed back");
        } else {
            let refused = woke.unwrap_err();
            assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
            let lost = world.pool.wake_losing(Scope::Whole, Limit::NONE).unwrap().lost;
            assert_eq!(lost.len(), 1, "{lost:?}");
            assert_all_whole(&contents[1..2], "another page");
        }
        check(&world.pool);
    }
}

// The device computes digests while the driver is busy with the chunks before.
#[test]
fn chunks_leave_while_the_next_ones_are_looked_at() {
    let world = World::new(
        Policy::default()
            .numbers(|numbers| numbers.checked_at_once = PAGE)
            .numbers(|numbers| numbers.wake_chunk_most = PAGE),
    );
    let contents = contents(&world);
    world.pool.sleep(Scope::Whole).unwrap();
    world.pool.wake(Scope::Whole).unwrap();
    // How often each page was digested, and at each unmap how many were ready to follow it.
    let seen = Arc::new(Mutex::new((BTreeMap::<u64, u64>::new(), Vec::new())));
    let record = Arc::clone(&seen);
    world.faults.meddle(move |now| {
        let (looks, ready) = &mut *record.lock().unwrap();
        match now {
            Moment::Digested(pages) => {
                for page in pages {
                    *looks.entry(page.0).or_default() += 1;
                }
            }
            Moment::Unmapping(at, size) => {
                for page in (at.0..at.0 + size.0).step_by(PAGE.as_usize()) {
                    assert_eq!(looks.remove(&page), Some(2), "digests of {page:#x} before it goes");
                }
                ready.push(looks.values().filter(|looks| **looks == 2).count());
            }
            Moment::CopiedOut(..) | Moment::CopiedIn(..) | Moment::CopiedWithin(..) => {
                panic!("{now:?}: nothing changed")
            }
        }
    });
    world.pool.sleep(Scope::Whole).unwrap();
    world.faults.leave_alone();
    let (left, ready) = &*seen.lock().unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(*ready, [1, 1, 1, 1, 1, 0], "one batch is looked at while the one before leaves");
    world.pool.wake(Scope::Whole).unwrap();
    assert_all_whole(&contents, "two sleeps");
}

/// Writes at random, whenever a sleep can still notice: to a page that was looked at for the first
/// time, or was written since the look before this one, and to what was just copied.
struct Vandal {
    dice: Dice,
    /// One in so many chances is taken.
    sides: u64,
    /// Looks at each page so far, and whether it was written since the last one.
    pages: BTreeMap<u64, (u64, bool)>,
    blocks: Arc<Mutex<Vec<Content>>>,
}

impl Vandal {
    fn meddle(&mut self, now: Moment<'_>) {
        match now {
            Moment::Digested(pages) => {
                for page in pages {
                    let (looks, is_written) = self.pages.entry(page.0).or_default();
                    *looks += 1;
                    let stays = *looks == 1 || *is_written;
                    *is_written = false;
                    if stays {
                        self.write_in(page.0, PAGE);
                    }
                }
            }
            Moment::CopiedOut(at, size) => self.write_in(at.0, size),
            Moment::CopiedIn(..) | Moment::CopiedWithin(..) | Moment::Unmapping(..) => {}
        }
    }

    fn write_in(&mut self, from: u64, size: Bytes) {
        if !self.dice.one_in(self.sides) {
            return;
        }
        let byte = from + self.dice.roll(size.0);
        for content in self.blocks.lock().unwrap().iter_mut() {
            let start = content.address.0;
            if (start..start + content.bytes.len() as u64).contains(&byte) {
                content.change((byte - start) as usize);
                self.pages.entry(byte / PAGE.0 * PAGE.0).or_default().1 = true;
            }
        }
    }
}

#[test]
fn strays_at_random_moments_lose_nothing() {
    let mut dice = Dice::new(20_261_116);
    println!("seed {}", dice.0);
    let (mut again, mut failed, mut quiet) = (0, 0, 0);
    for round in 0..5 {
        let world = World::new(dice.pick(&policies()));
        let blocks = Arc::new(Mutex::new(contents(&world)));
        for turn in 0..6 {
            let (dice, sides) = (Dice::new(dice.roll(1 << 30)), dice.pick(&[1, 2, 4, 12]));
            let (pages, blocks_of) = (BTreeMap::new(), Arc::clone(&blocks));
            let mut vandal = Vandal { dice, sides, pages, blocks: blocks_of };
            world.faults.meddle(move |now| vandal.meddle(now));
            let outcome = world.pool.sleep(Scope::Whole);
            world.faults.leave_alone();
            let after = format!("turn {turn} of round {round}, one in {sides}: {outcome:?}");
            match &outcome {
                Ok(slept) if slept.copied_again == 0 => quiet += 1,
                Ok(slept) => again += slept.copied_again,
                Err(Error::KeepsChanging { .. }) => {
                    failed += 1;
                    assert_eq!(world.pool.phase(world.weights).unwrap(), Phase::Awake, "{after}");
                }
                Err(other) => panic!("{other}"),
            }
            world.pool.check();
            world.pool.wake(Scope::Whole).unwrap_or_else(|error| panic!("{error} after {after}"));
            assert_all_whole(&blocks.lock().unwrap(), &after);
            check(&world.pool);
        }
    }
    println!("{again} pages were copied again, {failed} sleeps failed, {quiet} saw nothing");
    assert!(again > 0 && failed > 0);
}
