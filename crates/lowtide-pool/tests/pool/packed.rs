//! Packed pages: fewer bytes on the host, and every byte back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use lowtide_device::{Address, Bytes};
use lowtide_pool::{Error, Policy, Pool, Scope, SleepPolicy, Tag};
use lowtide_testing::noise::first_difference;
use lowtide_testing::refusing::{Faults, device_over};
use lowtide_testing::weights::PAGE_KINDS;
use lowtide_testing::{Dice, share};

use crate::hands::Hands;
use crate::written::{PAGE, STREAM, check, host, in_use};

/// A block whose bytes are known.
struct Content {
    address: Address,
    bytes: Vec<u8>,
}

/// Contents of a page: the kind of its values, by its index.
const WEIGHTS: usize = 1;
const ZEROS: usize = 2;
const NOISE: usize = 11;

// Making values takes long: one page of each kind is made, and its values trade places.
fn page(kind: usize, seed: u64) -> Vec<u8> {
    static MADE: Mutex<BTreeMap<usize, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut page = made.entry(kind).or_insert_with(|| PAGE_KINDS[kind].page(1)).clone();
    drop(made);
    let most = page.len();
    page.rotate_left(seed as usize * 8190 % most);
    page
}

impl Content {
    fn new(pool: &Pool, hand: &Hands, tag: Tag, pages: &[Vec<u8>]) -> Content {
        let bytes = pages.concat();
        let address = pool.alloc(Bytes(bytes.len() as u64), STREAM, tag).unwrap();
        let content = Content { address, bytes };
        content.write(pool, hand);
        content
    }

    fn write(&self, pool: &Pool, hand: &Hands) {
        hand.write(pool, self.address, 0, &self.bytes);
    }

    fn assert_is_whole(&self, pool: &Pool, hand: &Hands, when: &str) {
        let found = hand.read(pool, self.address, 0, self.bytes.len());
        assert_eq!(first_difference(&found, &self.bytes), None, "{when}");
    }
}

fn packing() -> Policy {
    Policy::default().packing(true).numbers(|numbers| numbers.compare_each = 1)
}

// No backups, some and all are registered; kept and not; looked at on the host and not.
fn policies() -> [Policy; 4] {
    [
        packing().direct_backups(Bytes::ZERO),
        packing().direct_backups(Bytes::mib(7)).keep_backups(false),
        packing().direct_backups(Bytes(u64::MAX)).numbers(|numbers| numbers.compare_each = 0),
        packing().direct_backups(Bytes::mib(7)).check_backups(true),
    ]
}

#[test]
fn backups_of_weights_take_three_quarters_of_their_bytes() {
    for policy in policies() {
        let device = host(Bytes::mib(160));
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let hand = Hands::new(pool.device());
        let pages: Vec<Vec<u8>> = (0..21).map(|seed| page(WEIGHTS, seed)).collect();
        let content = Content::new(&pool, &hand, Tag::default(), &pages);
        let whole = Bytes(content.bytes.len() as u64);
        for turn in 0..3 {
            let slept = pool.sleep(Scope::Whole).unwrap();
            assert_eq!(slept.copied + slept.unchanged, whole, "raw bytes are reported");
            let (counts, most) = (pool.counts(), whole.0 * 77 / 100);
            assert!(counts.backup.0 <= most, "{} of {whole}", counts.backup);
            assert!(counts.host.0 <= most + 2 * PAGE.0, "{} of {whole}", counts.host);
            assert_eq!(in_use(&device), Bytes::ZERO);
            check(&pool);
            pool.wake(Scope::Whole).unwrap();
            content.assert_is_whole(&pool, &hand, &format!("turn {turn}, {policy:?}"));
            check(&pool);
        }
    }
}

// Each turn some pages take another form, so that their slots change, too.
#[test]
fn pages_of_all_forms_come_back_however_they_change() {
    for (policy, seed) in policies().into_iter().zip(100..) {
        let (device, mut dice) = (host(Bytes::mib(160)), Dice::new(seed));
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let (hand, weights) =
            (Hands::new(pool.device()), pool.tag("weights", SleepPolicy::Offload).unwrap());
        let made = [WEIGHTS, ZEROS, NOISE, 3, 10].map(|kind| page(kind, seed));
        let mut contents = Vec::new();
        for (tag, count) in [(weights, 9), (Tag::default(), 5), (weights, 2)] {
            let pages: Vec<_> = (0..count).map(|_| dice.pick(&made)).collect();
            contents.push(Content::new(&pool, &hand, tag, &pages));
        }
        for turn in share(0..30) {
            pool.sleep(Scope::Whole).unwrap();
            check(&pool);
            pool.wake(Scope::Whole).unwrap();
            for content in &mut contents {
                content.assert_is_whole(&pool, &hand, &format!("turn {turn}, seed {seed}"));
                for changed in content.bytes.chunks_exact_mut(PAGE.as_usize()) {
                    if dice.one_in(3) {
                        changed.copy_from_slice(&dice.pick(&made));
                    }
                }
                content.write(&pool, &hand);
            }
            check(&pool);
        }
    }
}

#[test]
fn the_limit_of_backups_counts_packed_bytes() {
    let device = host(Bytes::mib(128));
    let policy = packing().backup_most(Some(Bytes::mib(16)));
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    let hand = Hands::new(pool.device());
    let pages: Vec<Vec<u8>> = (0..10).map(|seed| page(WEIGHTS, seed)).collect();
    let mut content = Content::new(&pool, &hand, Tag::default(), &pages);
    pool.sleep(Scope::Whole).expect("20 MiB are 15.1");
    pool.wake(Scope::Whole).unwrap();
    content.bytes = (0..10).flat_map(|seed| page(NOISE, seed)).collect();
    content.write(&pool, &hand);
    let refused = pool.sleep(Scope::Whole).unwrap_err();
    assert!(matches!(refused, Error::BackupLimit { .. }), "{refused}");
    content.assert_is_whole(&pool, &hand, "after a sleep that was refused");
    check(&pool);
}

fn spoilt(policy: Policy) -> (Arc<Faults>, Pool, Hands, Content) {
    let (faults, pool, hand, content) = seven_pages(policy, Bytes::mib(128));
    faults.spoil_packs(1);
    (faults, pool, hand, content)
}

fn seven_pages(policy: Policy, budget: Bytes) -> (Arc<Faults>, Pool, Hands, Content) {
    let faults = Arc::new(Faults::default());
    let device = device_over(&host(budget), &faults);
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    let hand = Hands::new(pool.device());
    let pages: Vec<Vec<u8>> = (0..7).map(|seed| page(WEIGHTS, seed)).collect();
    let content = Content::new(&pool, &hand, Tag::default(), &pages);
    (faults, pool, hand, content)
}

#[test]
fn a_kernel_that_packs_wrongly_is_found_while_the_page_is_there() {
    let checked = packing().numbers(|numbers| numbers.compare_each = 0).check_backups(true);
    for policy in [packing(), packing().direct_backups(Bytes::ZERO), checked] {
        let (_, pool, hand, content) = spoilt(policy);
        let slept = pool.sleep(Scope::Whole).unwrap();
        assert_eq!(slept.copied_again, 1, "the page is copied as it is");
        check(&pool);
        pool.wake(Scope::Whole).unwrap();
        content.assert_is_whole(&pool, &hand, "after the wake");
    }
}

// Wherever the device has room for what is unpacked: 14 MiB are used, and the ring takes 42 of the rest.
#[test]
fn a_kernel_that_unpacks_wrongly_is_found_while_the_page_is_there() {
    for policy in [packing(), packing().direct_backups(Bytes::ZERO)] {
        // A page to a chunk, so that each is unpacked, and spoilt, by itself.
        let policy = policy.numbers(|numbers| numbers.large_chunk_most = Bytes::ZERO);
        let (faults, pool, hand, content) = seven_pages(policy, Bytes::mib(128));
        faults.spoil_unpacks(u64::MAX);
        let slept = pool.sleep(Scope::Whole).unwrap();
        assert_eq!(slept.copied_again, 7, "every page is copied as it is");
        faults.spoil_unpacks(0);
        check(&pool);
        let woke = pool.wake(Scope::Whole).unwrap();
        assert_eq!(woke.copied_again, 0, "nothing was left for the wake to find");
        content.assert_is_whole(&pool, &hand, "after the wake");
    }
}

#[test]
fn without_room_for_a_ring_pages_are_copied_as_they_are() {
    for budget in [Bytes::mib(14), Bytes::mib(64)] {
        let (faults, pool, hand, content) = seven_pages(packing(), budget);
        faults.spoil_packs(1);
        let slept = pool.sleep(Scope::Whole).unwrap();
        assert_eq!(slept.copied_again, 0, "nothing is packed with {budget}");
        assert_eq!(pool.counts().backup, Bytes(content.bytes.len() as u64));
        check(&pool);
        pool.wake(Scope::Whole).unwrap();
        content.assert_is_whole(&pool, &hand, "after the wake");
    }
}

// There was room for a ring when the pages were packed, and there is none now.
#[test]
fn without_room_for_a_ring_packed_pages_come_back() {
    let (_, pool, hand, content) = seven_pages(packing(), Bytes::mib(128));
    pool.sleep(Scope::Whole).unwrap();
    let keep = pool.tag("others", SleepPolicy::Keep).unwrap();
    let others = pool.block_tagged(Bytes::mib(110), keep).unwrap();
    pool.wake(Scope::Whole).unwrap();
    content.assert_is_whole(&pool, &hand, "after the wake");
    drop(others);
    check(&pool);
}

#[test]
fn a_packed_page_that_nobody_compared_is_refused_by_the_wake() {
    let (_, pool, _, content) = spoilt(packing().numbers(|numbers| numbers.compare_each = 0));
    pool.sleep(Scope::Whole).unwrap();
    let refused = pool.wake(Scope::Whole).unwrap_err();
    let Error::Corrupt { page, others, .. } = refused else { panic!("{refused}") };
    assert_eq!((page, others.len()), (content.address, 0), "the one page");
    check(&pool);
    let woke = pool.wake_losing(Scope::Whole, lowtide_pool::Limit::NONE).unwrap();
    assert_eq!(woke.lost.len(), 1);
    check(&pool);
}

#[test]
fn one_sleep_in_so_many_compares() {
    let (faults, pool, hand, mut content) =
        spoilt(packing().numbers(|numbers| numbers.compare_each = 3));
    let found: Vec<bool> = (0..5)
        .map(|turn| {
            content.bytes = (0..7).flat_map(|seed| page(WEIGHTS, 10 * turn + seed)).collect();
            content.write(&pool, &hand);
            faults.spoil_packs(1);
            let found = pool.sleep(Scope::Whole).unwrap().copied_again == 1;
            assert_eq!(
                pool.wake_losing(Scope::Whole, lowtide_pool::Limit::NONE).unwrap().lost.len(),
                usize::from(!found)
            );
            found
        })
        .collect();
    assert_eq!(found, [true, false, false, true, false]);
}

#[test]
fn what_was_prepared_raw_serves_packed_pages() {
    let device = host(Bytes::mib(128));
    let pool = Pool::builder(&device).policy(packing()).build().unwrap();
    let hand = Hands::new(pool.device());
    let pages: Vec<Vec<u8>> = (0..8).map(|seed| page(WEIGHTS, seed)).collect();
    let content = Content::new(&pool, &hand, Tag::default(), &pages);
    pool.prepare_sleep().unwrap();
    let prepared = pool.counts().host;
    pool.sleep(Scope::Whole).unwrap();
    assert!(pool.counts().host <= prepared, "{} after {prepared}", pool.counts().host);
    check(&pool);
    pool.wake(Scope::Whole).unwrap();
    content.assert_is_whole(&pool, &hand, "after the wake");
}
