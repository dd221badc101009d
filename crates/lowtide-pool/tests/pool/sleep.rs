//! Sleep and wake on real pages: the same bytes at the same addresses, and nothing on the device
//! between.

use lowtide_device::{Bytes, RangeProblem};
use lowtide_pool::{Error, Phase, Policy, Scope, SleepPolicy, SleepReport, Tag, WakeReport};
use lowtide_testing::noise::{first_other, words};

use crate::written::{
    PAGE, STREAM, Written, check, check_whole, host, in_use, pool_on, wake_whole,
};
use lowtide_testing::Dice;

#[test]
fn content_comes_back_at_the_same_addresses() {
    let pool = pool_on(&host(Bytes::mib(96)), Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let state = pool.tag("state", SleepPolicy::Offload).unwrap();
    let sizes = [
        Bytes(1),
        Bytes(700),
        Bytes::kib(64),
        Bytes::kib(256),
        Bytes(Bytes::kib(256).0 + 1),
        Bytes(Bytes::mib(3).0 + 5),
        Bytes::mib(18),
    ];
    let mut blocks = Vec::new();
    for tag in [Tag::default(), weights, state] {
        for size in sizes {
            blocks.push(Written::new(&pool, size, tag, blocks.len() as u64));
        }
    }
    let before = pool.counts();
    for _ in 0..2 {
        let slept = pool.sleep(Scope::Whole).unwrap();
        assert_eq!((slept.tags, slept.freed), (3, before.physical));
        assert_eq!(in_use(pool.device()), Bytes::ZERO);
        assert_eq!(pool.counts().asleep, before.live);
        check(&pool);
        let woke = pool.wake(Scope::Whole).unwrap();
        assert_eq!((woke.tags, woke.mapped), (3, pool.counts().physical));
        assert_eq!(woke.copied_again, 0);
        check(&pool);
        blocks.iter().for_each(Written::assert_is_whole);
        assert_eq!(pool.counts().live, before.live);
        assert_eq!(pool.counts().asleep, Bytes::ZERO);
    }
    for block in &blocks {
        pool.free(block.address, STREAM).unwrap();
    }
    pool.trim(Bytes::ZERO).unwrap();
    check(&pool);
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
}

#[test]
fn only_what_is_kept_stays_on_the_device() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let pinned = pool.tag("pinned", SleepPolicy::Keep).unwrap();
    let saved = Written::new(&pool, Bytes::mib(9), Tag::default(), 1);
    let kept = Written::new(&pool, Bytes::mib(5), pinned, 2);
    Written::new(&pool, Bytes::mib(7), cache, 3);
    pool.sleep(Scope::Whole).unwrap();
    let phases = [Tag::default(), cache, pinned].map(|tag| pool.phase(tag).unwrap());
    assert_eq!(phases, [Phase::Asleep, Phase::Asleep, Phase::Awake]);
    assert_eq!(in_use(pool.device()), Bytes::mib(6), "whole pages of what is kept");
    kept.assert_is_whole();
    let more = Written::new(&pool, Bytes::mib(3), pinned, 4);
    check(&pool);
    wake_whole(&pool, &[saved, kept, more]);
    assert_eq!(pool.sleep(Scope::Tags(&[pinned])).unwrap(), SleepReport::default());
    assert_eq!(pool.phase(pinned).unwrap(), Phase::Awake);
}

#[test]
fn a_discarded_tag_gets_memory_under_its_addresses_again() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let mut blocks = [Bytes::kib(9), Bytes::mib(5), Bytes::mib(11)]
        .map(|size| Written::new(&pool, size, cache, size.0));
    let places = blocks.map(|block| pool.place_of(block.address).unwrap().1);
    let slept = pool.sleep(Scope::Tags(&[cache])).unwrap();
    assert_eq!((slept.copied, slept.unchanged, slept.zero), Default::default());
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
    let woke = pool.wake(Scope::Tags(&[cache])).unwrap();
    assert_eq!(woke.copied, Bytes::ZERO);
    assert_eq!((pool.counts().backup, pool.counts().host), Default::default());
    assert_eq!(blocks.map(|block| pool.place_of(block.address).unwrap().1), places);
    for block in &mut blocks {
        block.seed += 1;
        block.write();
    }
    check_whole(&pool, &blocks);
}

#[test]
fn a_tag_may_be_discarded_awake_or_asleep_and_is_saved_again_later() {
    let device = host(Bytes::mib(64));
    let pool = pool_on(&device, Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let other = Written::new(&pool, Bytes::mib(5), Tag::default(), 1);
    let block = Written::new(&pool, Bytes::mib(9), weights, 2);
    // Once saved, once given up while it sleeps: the other tag's backup stays.
    pool.sleep(Scope::Whole).unwrap();
    let saved = pool.counts().backup;
    pool.set_policy(weights, SleepPolicy::Discard).unwrap();
    check(&pool);
    assert!(pool.counts().backup < saved && pool.counts().backup >= Bytes::mib(5));
    for wanted in [SleepPolicy::Offload, SleepPolicy::Keep] {
        let refused = pool.set_policy(weights, wanted).unwrap_err();
        assert!(matches!(refused, Error::PolicyWhileAsleep { .. }), "{refused}");
    }
    let woke = pool.wake(Scope::Whole).unwrap();
    assert!(woke.copied < Bytes::mib(9), "only the other tag: {woke:?}");
    other.assert_is_whole();
    // Discarded awake.
    block.write();
    assert_eq!(pool.sleep(Scope::Tags(&[weights])).unwrap().copied, Bytes::ZERO);
    pool.wake(Scope::Tags(&[weights])).unwrap();
    // Saved again, as if nothing had been.
    pool.set_policy(weights, SleepPolicy::Offload).unwrap();
    block.write();
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(in_use(&device), Bytes::ZERO);
    check(&pool);
    wake_whole(&pool, &[block, other]);
    let stranger = pool_on(&device, Policy::default());
    let refused = stranger.set_policy(weights, SleepPolicy::Keep).unwrap_err();
    assert!(matches!(refused, Error::UnknownTag { .. }), "{refused}");
}

#[test]
fn sleeping_twice_and_waking_twice_is_harmless() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let block = Written::new(&pool, Bytes::mib(7), Tag::default(), 5);
    assert_eq!(pool.wake(Scope::Whole).unwrap(), WakeReport::default(), "it is awake");
    assert_ne!(pool.sleep(Scope::Whole).unwrap(), SleepReport::default());
    let asleep = pool.counts();
    assert_eq!(pool.sleep(Scope::Whole).unwrap(), SleepReport::default());
    assert_eq!(pool.counts(), asleep);
    assert_ne!(pool.wake(Scope::Whole).unwrap(), WakeReport::default());
    assert_eq!(pool.wake(Scope::Whole).unwrap(), WakeReport::default());
    // A tag that is named twice turns once.
    assert_eq!(pool.sleep(Scope::Tags(&[Tag::default(); 2])).unwrap().tags, 1);
    assert_eq!(pool.wake(Scope::Tags(&[Tag::default(); 2])).unwrap().tags, 1);
    check_whole(&pool, &[block]);
}

#[test]
fn a_sleep_of_one_tag_leaves_the_others_awake() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let sleeper = Written::new(&pool, Bytes::mib(9), weights, 6);
    let other = Written::new(&pool, Bytes::mib(5), Tag::default(), 7);
    assert_eq!(pool.sleep(Scope::Tags(&[weights])).unwrap().tags, 1);
    assert_eq!(pool.phase(weights).unwrap(), Phase::Asleep);
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
    assert_eq!(in_use(pool.device()), Bytes::mib(6));
    other.assert_is_whole();
    let more = Written::new(&pool, Bytes::mib(11), Tag::default(), 8);
    let small = Written::new(&pool, Bytes(100), Tag::default(), 9);
    pool.free(other.address, STREAM).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    let newcomer = pool.tag("newcomer", SleepPolicy::Offload).unwrap();
    let new = Written::new(&pool, Bytes::mib(1), newcomer, 10);
    check(&pool);
    assert_eq!(pool.wake(Scope::Whole).unwrap().tags, 1);
    check_whole(&pool, &[sleeper, more, small, new]);
}

#[test]
fn what_is_freed_asleep_gets_no_memory_again() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let blocks = [1, 2, 3, 4].map(|seed| Written::new(&pool, Bytes::mib(8), Tag::default(), seed));
    let small = [5, 6].map(|seed| Written::new(&pool, Bytes::kib(20), Tag::default(), seed));
    let before = pool.counts();
    assert_eq!(before.physical, Bytes::mib(34));
    pool.sleep(Scope::Whole).unwrap();
    for gone in [&blocks[1], &blocks[2], &small[0]] {
        pool.free(gone.address, STREAM).unwrap();
        assert!(matches!(
            pool.free(gone.address, STREAM),
            Err(Error::UnknownBlock { address }) if address == gone.address
        ));
        pool.check();
    }
    let asleep = pool.counts();
    assert_eq!(asleep.live, before.live - Bytes(Bytes::mib(16).0 + Bytes::kib(20).0));
    assert_eq!(asleep.asleep, asleep.live);
    let woke = pool.wake(Scope::Whole).unwrap();
    assert_eq!((woke.mapped, woke.copied), (Bytes::mib(18), Bytes::mib(18)));
    assert_eq!(in_use(pool.device()), Bytes::mib(18));
    check_whole(&pool, &[blocks[0], blocks[3], small[1]]);
    // The addresses in between can be had again.
    let again = Written::new(&pool, Bytes::mib(16), Tag::default(), 7);
    check_whole(&pool, &[blocks[0], blocks[3], again]);
    // A tag whose last block was freed in its sleep wakes to nothing.
    pool.sleep(Scope::Whole).unwrap();
    for block in [blocks[0], blocks[3], small[1], again] {
        pool.free(block.address, STREAM).unwrap();
    }
    assert_eq!(pool.wake(Scope::Whole).unwrap().mapped, Bytes::ZERO);
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
    check(&pool);
}

#[test]
fn freed_memory_is_neither_copied_nor_mapped_again() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let live = Written::new(&pool, Bytes::mib(6), Tag::default(), 1);
    let resting = Written::new(&pool, Bytes::mib(20), Tag::default(), 2);
    pool.free(resting.address, STREAM).unwrap();
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.freed), (Bytes::mib(6), Bytes::mib(26)));
    assert_eq!(pool.wake(Scope::Whole).unwrap().mapped, Bytes::mib(6));
    check_whole(&pool, &[live]);
}

#[test]
fn an_allocation_in_a_sleeping_tag_is_refused_by_name() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let block = Written::new(&pool, Bytes::mib(3), weights, 1);
    // A block that rests is no way around it.
    let resting = pool.alloc(Bytes::mib(5), STREAM, weights).unwrap();
    pool.sleep(Scope::Tags(&[weights])).unwrap();
    pool.free(block.address, STREAM).unwrap();
    for size in [Bytes(1), Bytes::mib(3), Bytes::mib(5)] {
        let refused = pool.alloc(size, STREAM, weights).unwrap_err();
        assert!(matches!(&refused, Error::Asleep { tag } if tag == "weights"), "{refused}");
    }
    assert!(matches!(pool.block_tagged(Bytes(1), weights), Err(Error::Asleep { .. })));
    pool.wake(Scope::Tags(&[weights])).unwrap();
    pool.alloc(Bytes(1), STREAM, weights).unwrap();
    pool.free(resting, STREAM).unwrap();
    check(&pool);
}

#[test]
fn an_allocation_wakes_its_tag_where_the_policy_says_so() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default().wake_on_alloc(true));
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let block = Written::new(&pool, Bytes::mib(9), weights, 1);
    let other = Written::new(&pool, Bytes::mib(5), Tag::default(), 2);
    pool.sleep(Scope::Whole).unwrap();
    let more = Written::new(&pool, Bytes::mib(3), weights, 3);
    assert_eq!(pool.phase(weights).unwrap(), Phase::Awake);
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep, "nobody asked for this one");
    [block, more].iter().for_each(Written::assert_is_whole);
    wake_whole(&pool, &[other]);
}

#[test]
fn only_pages_that_changed_are_copied_again() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let large = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
    let small = Written::new(&pool, Bytes::kib(30), Tag::default(), 2);
    let all = Bytes::mib(22);
    let turn = || {
        let slept = pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        assert_eq!((pool.counts().backup, slept.zero), (all, Bytes::ZERO));
        (slept.copied, slept.unchanged)
    };
    assert_eq!(turn(), (all, Bytes::ZERO));
    assert_eq!(turn(), (Bytes::ZERO, all));
    for (page, at) in [(3, 0), (0, PAGE.as_usize() - 1), (9, 12_345)] {
        let at = page * PAGE.as_usize() + at;
        large.bytes()[at] ^= 0x10;
        assert_eq!(turn(), (PAGE, all - PAGE));
        assert_eq!(large.bytes()[at], words::byte(1, at as u64) ^ 0x10, "the change came back");
        large.bytes()[at] ^= 0x10;
        assert_eq!(turn(), (PAGE, all - PAGE));
    }
    check_whole(&pool, &[large, small]);
}

#[test]
fn zeros_take_no_place_and_come_back_as_zeros() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let zeros = Written::new(&pool, Bytes::mib(8), Tag::default(), 1);
    let block = Written::new(&pool, Bytes::mib(4), Tag::default(), 2);
    zeros.bytes().fill(0);
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.zero), (Bytes::mib(4), Bytes::mib(8)));
    assert_eq!((pool.counts().backup, pool.counts().host), (Bytes::mib(4), Bytes::mib(4)));
    let woke = pool.wake(Scope::Whole).unwrap();
    assert_eq!((woke.mapped, woke.copied), (Bytes::mib(12), Bytes::mib(4)));
    assert_eq!(first_other(zeros.bytes(), 0), None);
    block.assert_is_whole();
    // What was stored becomes zero, and the other way round.
    block.bytes()[..PAGE.as_usize()].fill(0);
    zeros.bytes()[5] = 1;
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.zero, slept.unchanged), (PAGE, PAGE, Bytes::mib(8)));
    assert_eq!(pool.counts().backup, Bytes::mib(4));
    check(&pool);
    pool.wake(Scope::Whole).unwrap();
    let first = first_other(&block.bytes()[..PAGE.as_usize()], 0);
    assert_eq!(first, None, "not the old bytes");
    assert_eq!(zeros.bytes().iter().position(|byte| *byte != 0), Some(5));
    zeros.bytes().fill(0);
    block.bytes().fill(0);
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.zero), (Bytes::ZERO, Bytes::mib(4)));
    assert_eq!((pool.counts().backup, pool.counts().host), (Bytes::ZERO, Bytes::ZERO));
    check(&pool);
}

#[test]
fn pages_come_back_right_however_their_backups_are_scattered() {
    // All backups are plain pages, some are registered with the device, or all.
    for (seed, direct_backups) in [(11, Bytes::ZERO), (12, Bytes::mib(6)), (13, Bytes(u64::MAX))] {
        println!("seed {seed}");
        scatter(seed, Policy::default().direct_backups(direct_backups));
    }
}

fn scatter(seed: u64, policy: Policy) {
    let pool = pool_on(&host(Bytes::mib(64)), policy);
    let block = Written::new(&pool, Bytes::mib(24), Tag::default(), 1);
    let (mut dice, mut stamps) = (Dice(seed), [0; 12]);
    for _ in 0..12 {
        for (page, stamp) in block.bytes().chunks_mut(PAGE.as_usize()).zip(&mut stamps) {
            match dice.roll(3) {
                0 => *stamp = 0,
                1 => *stamp = 1 + dice.roll(255) as u8,
                _ => {}
            }
            page.fill(*stamp);
        }
        pool.sleep(Scope::Whole).unwrap();
        let stored = stamps.iter().filter(|stamp| **stamp > 0).count() as u64;
        assert_eq!(pool.counts().backup, Bytes(stored * PAGE.0));
        pool.wake(Scope::Whole).unwrap();
        for (page, stamp) in block.bytes().chunks(PAGE.as_usize()).zip(&stamps) {
            assert_eq!(first_other(page, *stamp), None, "{stamp} is wanted");
        }
        check(&pool);
    }
}

#[test]
fn backups_stay_or_go_as_the_policy_says() {
    for keep_backups in [true, false] {
        let pool = pool_on(&host(Bytes::mib(64)), Policy::default().keep_backups(keep_backups));
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let one = Written::new(&pool, Bytes::mib(10), weights, 1);
        let two = Written::new(&pool, Bytes::mib(6), Tag::default(), 2);
        for turn in 0..2 {
            let slept = pool.sleep(Scope::Whole).unwrap();
            let copied = if keep_backups && turn > 0 { Bytes::ZERO } else { Bytes::mib(16) };
            assert_eq!(slept.copied, copied);
            assert_eq!(
                (pool.counts().backup, pool.counts().host),
                (Bytes::mib(16), Bytes::mib(16))
            );
            pool.wake(Scope::Tags(&[weights])).unwrap();
            let left = if keep_backups { Bytes::mib(16) } else { Bytes::mib(6) };
            assert_eq!(pool.counts().backup, left, "a tag that sleeps has its backup");
            pool.wake(Scope::Whole).unwrap();
            let left = if keep_backups { Bytes::mib(16) } else { Bytes::ZERO };
            assert_eq!((pool.counts().backup, pool.counts().host), (left, left));
            check_whole(&pool, &[one, two]);
        }
    }
}

#[test]
fn registered_and_plain_backups_wake_side_by_side() {
    // More pieces than there are slots, and pieces of both kinds in one chunk.
    for (direct, keep_backups) in [(2, false), (34, true), (50, false)] {
        let direct_backups = Bytes::mib(direct);
        let policy = Policy::default().direct_backups(direct_backups).keep_backups(keep_backups);
        let pool = pool_on(&host(Bytes::mib(128)), policy);
        let other = pool.tag("other", SleepPolicy::Offload).unwrap();
        let mut blocks = [(Bytes::mib(37), Tag::default()), (Bytes::mib(50), other)]
            .map(|(size, tag)| Written::new(&pool, size, tag, size.0));
        let small = Written::new(&pool, Bytes::kib(9), other, 1);
        for _ in 0..2 {
            pool.sleep(Scope::Whole).unwrap();
            assert_eq!(in_use(pool.device()), Bytes::ZERO);
            assert_eq!(pool.counts().host, Bytes::mib(38 + 50 + 2));
            check(&pool);
            pool.wake(Scope::Tags(&[other])).unwrap();
            let woke = pool.wake(Scope::Whole).unwrap();
            assert_eq!((woke.copied, woke.copied_again), (Bytes::mib(38), 0));
            check_whole(&pool, &[blocks[0], blocks[1], small]);
            blocks[1].seed += 1;
            blocks[1].write();
        }
    }
}

#[test]
fn backups_of_dead_blocks_go_with_the_next_sleep() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let blocks = [1, 2].map(|seed| Written::new(&pool, Bytes::mib(8), Tag::default(), seed));
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Whole).unwrap();
    pool.free(blocks[1].address, STREAM).unwrap();
    assert_eq!(pool.sleep(Scope::Whole).unwrap().unchanged, Bytes::mib(8));
    assert_eq!(pool.counts().backup, Bytes::mib(8));
    wake_whole(&pool, &[blocks[0]]);
    pool.free(blocks[0].address, STREAM).unwrap();
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!((pool.counts().backup, pool.counts().host), (Bytes::ZERO, Bytes::ZERO));
    check(&pool);
}

#[test]
fn kept_backups_of_tags_that_are_awake_make_room() {
    let policy = Policy::default().backup_most(Some(Bytes::mib(12)));
    let pool = pool_on(&host(Bytes::mib(64)), policy);
    let (one, two) = (
        pool.tag("one", SleepPolicy::Offload).unwrap(),
        pool.tag("two", SleepPolicy::Offload).unwrap(),
    );
    let blocks =
        [Written::new(&pool, Bytes::mib(8), one, 1), Written::new(&pool, Bytes::mib(8), two, 2)];
    pool.sleep(Scope::Tags(&[one])).unwrap();
    pool.wake(Scope::Tags(&[one])).unwrap();
    pool.sleep(Scope::Tags(&[two])).unwrap();
    assert_eq!((pool.counts().backup, pool.counts().host), (Bytes::mib(8), Bytes::mib(8)));
    check(&pool);
    // What sleeps makes no room for anybody.
    assert!(matches!(pool.sleep(Scope::Tags(&[one])), Err(Error::BackupLimit { .. })));
    wake_whole(&pool, &blocks);
}

#[test]
fn a_sleep_beyond_the_backup_limit_leaves_everything_awake() {
    let most = Bytes::mib(10);
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default().backup_most(Some(most)));
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let blocks = [
        Written::new(&pool, Bytes::mib(8), Tag::default(), 1),
        Written::new(&pool, Bytes::mib(4), Tag::default(), 2),
        Written::new(&pool, Bytes::mib(6), cache, 3),
    ];
    let before = pool.counts();
    let refused = pool.sleep(Scope::Whole).unwrap_err();
    assert!(
        matches!(refused, Error::BackupLimit { needed, most: limit }
            if needed == Bytes::mib(12) && limit == most),
        "{refused}"
    );
    assert_eq!(pool.counts(), before);
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
    assert_eq!(pool.phase(cache).unwrap(), Phase::Awake);
    check_whole(&pool, &blocks);
    // Zeros need no place, and what is freed neither.
    blocks[1].bytes().fill(0);
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(pool.counts().host, Bytes::mib(8));
    wake_whole(&pool, &[blocks[0]]);
    // A refusal costs no backup of what did not change.
    blocks[1].write();
    blocks[0].bytes()[0] ^= 1;
    assert!(matches!(pool.sleep(Scope::Whole), Err(Error::BackupLimit { .. })));
    check(&pool);
    blocks[0].bytes()[0] ^= 1;
    pool.free(blocks[1].address, STREAM).unwrap();
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.unchanged), (PAGE, Bytes::mib(6)));
    wake_whole(&pool, &[blocks[0]]);
}

#[test]
fn a_sleep_with_nothing_in_it_says_so() {
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
    let nothing = SleepReport { tags: 1, ..SleepReport::default() };
    assert_eq!(pool.sleep(Scope::Whole).unwrap(), nothing);
    assert!(matches!(pool.alloc(Bytes(1), STREAM, Tag::default()), Err(Error::Asleep { .. })));
    assert_eq!(pool.sleep(Scope::Tags(&[])).unwrap(), SleepReport::default());
    assert_eq!(pool.wake(Scope::Tags(&[])).unwrap(), WakeReport::default());
    let nothing = WakeReport { tags: 1, ..WakeReport::default() };
    assert_eq!(pool.wake(Scope::Whole).unwrap(), nothing);
    assert_eq!((pool.counts(), in_use(pool.device())), Default::default());
    check(&pool);
}

#[test]
fn a_sleep_that_is_refused_midway_brings_back_what_has_left() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let blocks = [1, 2, 3].map(|seed| Written::new(&pool, Bytes::mib(8), Tag::default(), seed));
    let stream = pool.device().stream().unwrap();
    for block in &blocks {
        // Whoever copies keeps the block's memory until the stream was asked.
        let (reservation, offset) = pool.place_of(block.address).unwrap();
        let byte = words::byte(block.seed, 0);
        stream.fill((&reservation, offset), byte, Bytes(1)).unwrap();
        let refused = pool.sleep(Scope::Whole).unwrap_err();
        assert!(is_in_use(&refused), "{refused}");
        assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
        check_whole(&pool, &blocks);
        stream.synchronize().unwrap();
    }
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
    wake_whole(&pool, &blocks);
}

#[test]
fn nothing_is_discarded_where_the_device_refuses() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let saved = Written::new(&pool, Bytes::mib(8), Tag::default(), 1);
    let lost = [2, 3].map(|seed| Written::new(&pool, Bytes::mib(6), cache, seed));
    let stream = pool.device().stream().unwrap();
    let (reservation, offset) = pool.place_of(lost[1].address).unwrap();
    stream.fill((&reservation, offset), words::byte(3, 0), Bytes(1)).unwrap();
    let refused = pool.sleep(Scope::Whole).unwrap_err();
    assert!(is_in_use(&refused), "{refused}");
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Awake);
    assert_eq!(pool.phase(cache).unwrap(), Phase::Awake);
    check_whole(&pool, &[saved, lost[0], lost[1]]);
    stream.synchronize().unwrap();
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(in_use(pool.device()), Bytes::ZERO);
}

fn is_in_use(error: &Error) -> bool {
    use lowtide_device::Error::BadRange;
    matches!(error, Error::Device(BadRange { problem: RangeProblem::InUse, .. }))
}

#[test]
fn a_wake_makes_whole_pages_whatever_the_policy_says() {
    let device = host(Bytes::mib(64));
    for most in [Bytes::ZERO, Bytes::mib(3), Bytes(u64::MAX)] {
        let policy = Policy::default()
            .numbers(|numbers| numbers.wake_chunk_most = most)
            .numbers(|numbers| numbers.chunk_most = most);
        let pool = pool_on(&device, policy);
        let block = Written::new(&pool, Bytes::mib(20), Tag::default(), 1);
        pool.sleep(Scope::Whole).unwrap();
        wake_whole(&pool, &[block]);
    }
}
