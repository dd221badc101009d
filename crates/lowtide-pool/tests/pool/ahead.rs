//! Backups ahead of time: a sleep copies nothing that was saved before, and every byte comes back.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use lowtide_device::Bytes;
use lowtide_pool::{
    AheadNext, AheadReport, Error, Limit, Policy, Pool, Scope, SleepPolicy, StreamId, Tag,
};
use lowtide_testing::Dice;
use lowtide_testing::noise::first_other;
use lowtide_testing::refusing::{Faults, Moment, device_over};

use crate::written::{PAGE, STREAM, Written, check, check_whole, host, in_use, pool_on};

/// What a step may copy: two pieces of 8 MiB.
const SOME: Bytes = Bytes::mib(16);

fn ahead() -> Policy {
    Policy::default().packing(false).ahead_most(Bytes::mib(256)).direct_backups(Bytes::ZERO)
}

// No backups, some and all are registered; packed and not; each digested on the host, too, or not.
fn policies() -> Vec<Policy> {
    let mut policies = Vec::new();
    for packing in [false, true] {
        for direct in [Bytes::ZERO, Bytes::mib(7), Bytes(u64::MAX)] {
            let policy = ahead()
                .packing(packing)
                .numbers(|numbers| numbers.compare_each = 1)
                .direct_backups(direct);
            policies.push(policy.check_backups(direct == Bytes::mib(7)));
        }
    }
    policies
}

// Until nothing is left, or no room.
fn back_up(pool: &Pool) -> (Bytes, AheadNext) {
    let mut saved = Bytes::ZERO;
    for _ in 0..200 {
        let AheadReport { saved: more, next, .. } = pool.back_up_some(SOME).unwrap();
        saved += more;
        if next != AheadNext::More {
            return (saved, next);
        }
    }
    panic!("there is always more");
}

#[test]
fn a_sleep_copies_nothing_that_was_saved_before() {
    for policy in policies() {
        let pool = pool_on(&host(Bytes::mib(128)), policy);
        let sizes = [Bytes::mib(10), Bytes::mib(3), Bytes(100_000), Bytes::mib(2)];
        let mut blocks: Vec<Written> = (0..)
            .zip(sizes)
            .map(|(seed, size)| Written::new(&pool, size, Tag::default(), seed))
            .collect();
        assert_eq!(back_up(&pool).1, AheadNext::Nothing, "{policy:?}");
        check(&pool);
        assert!(pool.counts().backup > Bytes::ZERO);
        let slept = pool.sleep(Scope::Whole).unwrap();
        assert_eq!(slept.copied, Bytes::ZERO, "{policy:?}");
        assert_eq!((slept.unchanged, in_use(pool.device())), (Bytes::mib(18), Bytes::ZERO));
        check(&pool);
        pool.wake(Scope::Whole).unwrap();
        blocks.iter().for_each(Written::assert_is_whole);
        // What is written before, between and after steps is found by the next sleep.
        for turn in 0..2 {
            blocks[0].seed += 10;
            blocks[0].write();
            back_up(&pool);
            blocks[2].bytes()[turn] ^= 1;
            let slept = pool.sleep(Scope::Whole).unwrap();
            assert_eq!(slept.copied, PAGE, "{policy:?}");
            pool.wake(Scope::Whole).unwrap();
            blocks[2].bytes()[turn] ^= 1;
            check_whole(&pool, &blocks);
        }
    }
}

#[test]
fn without_the_policy_nothing_is_done() {
    let pool = pool_on(&host(Bytes::mib(16)), Policy::default());
    let _block = Written::new(&pool, Bytes::mib(4), Tag::default(), 1);
    let calls = pool.device().calls();
    assert_eq!(pool.back_up_some(SOME).unwrap(), AheadReport::default());
    assert_eq!(pool.device().calls(), calls);
}

#[test]
fn a_step_copies_no_more_than_it_is_told_to() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let block = Written::new(&pool, Bytes::mib(32), Tag::default(), 1);
    let (mut steps, mut saved) = (0, Bytes::ZERO);
    while pool.counts().backup < Bytes::mib(32) {
        let report = pool.back_up_some(Bytes::mib(6)).unwrap();
        assert!(report.saved <= Bytes::mib(6) && report.next == AheadNext::More, "{report:?}");
        (steps, saved) = (steps + 1, saved + report.saved);
    }
    assert_eq!((steps, saved), (1 + 6, Bytes::mib(32)), "one round of looks, then the copies");
    assert_eq!(pool.sleep(Scope::Whole).unwrap().copied, Bytes::ZERO);
    pool.wake(Scope::Whole).unwrap();
    block.assert_is_whole();
}

// Whatever a page is between two moments, its backup is what its digest says.
#[test]
fn a_page_that_changes_and_changes_back_matches_no_wrong_backup() {
    for policy in policies().into_iter().step_by(2) {
        let faults = Arc::new(Faults::default());
        let device = device_over(&host(Bytes::mib(64)), &faults);
        let pool = pool_on(&device, policy);
        let block = Written::new(&pool, Bytes::mib(4), Tag::default(), 3);
        // A byte of the second page changes at one of the moments and changes back at the next.
        for changes_at in 0..6 {
            pool.back_up_some(SOME).unwrap();
            let byte = block.address.plus(PAGE + Bytes(77));
            let moments = Mutex::new(0);
            faults.meddle(move |now| {
                if now.is_of(byte) && !matches!(now, Moment::Unmapping(..)) {
                    let mut moments = moments.lock().unwrap();
                    if [changes_at, changes_at + 1].contains(&*moments) {
                        block.bytes()[(PAGE.0 + 77) as usize] ^= 0x55;
                    }
                    *moments += 1;
                }
            });
            for _ in 0..4 {
                pool.back_up_some(SOME).unwrap();
            }
            faults.leave_alone();
            block.write();
            pool.check();
            pool.sleep(Scope::Whole).unwrap();
            pool.wake(Scope::Whole).unwrap();
            block.assert_is_whole();
            // The next time, every page is to be copied again.
            block.bytes().iter_mut().for_each(|byte| *byte ^= 2);
            back_up(&pool);
            block.write();
        }
    }
}

#[test]
fn a_page_that_changes_all_the_time_is_left_to_the_sleep() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let (calm, busy) = (
        Written::new(&pool, Bytes::mib(4), Tag::default(), 1),
        Written::new(&pool, Bytes::mib(4), Tag::default(), 2),
    );
    let mut ends = 0;
    for step in 0..40 {
        busy.bytes()[0] = step;
        busy.bytes()[PAGE.as_usize()] = step;
        ends += u32::from(pool.back_up_some(SOME).unwrap().next == AheadNext::Nothing);
    }
    assert!(ends > 10, "nothing else is left, and it does not look again and again: {ends}");
    assert_eq!(pool.counts().backup, Bytes::mib(4));
    busy.write();
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.unchanged), (Bytes::mib(4), Bytes::mib(4)));
    pool.wake(Scope::Whole).unwrap();
    calm.assert_is_whole();
    busy.assert_is_whole();
}

#[test]
fn only_what_a_sleep_would_save_is_copied() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let tags = [("cache", SleepPolicy::Discard), ("pinned", SleepPolicy::Keep)]
        .map(|(name, policy)| pool.tag(name, policy).unwrap());
    let blocks = tags.map(|tag| Written::new(&pool, Bytes::mib(4), tag, 5));
    let zeros = pool.block(Bytes::mib(6)).unwrap();
    zeros.fill(0).unwrap();
    assert_eq!(back_up(&pool), (Bytes::ZERO, AheadNext::Nothing));
    assert_eq!((pool.counts().backup, pool.counts().host), (Bytes::ZERO, Bytes::ZERO));
    // Zeros need no copy, only to be known.
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!((slept.copied, slept.unchanged), (Bytes::ZERO, Bytes::mib(6)));
    pool.wake(Scope::Whole).unwrap();
    let mut bytes = vec![1; zeros.size().as_usize()];
    zeros.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(first_other(&bytes, 0), None);
    check_whole(&pool, &[blocks[1]]);
}

#[test]
fn the_limits_of_host_memory_hold() {
    for (policy, most) in [
        (ahead().ahead_most(Bytes::mib(10)), Bytes::mib(10)),
        (ahead().backup_most(Some(Bytes::mib(12))), Bytes::mib(12)),
        (ahead().ahead_most(Bytes::mib(1)), Bytes::ZERO),
    ] {
        let pool = pool_on(&host(Bytes::mib(64)), policy);
        let mut block = Written::new(&pool, Bytes::mib(20), Tag::default(), 2);
        let (saved, next) = back_up(&pool);
        assert_eq!(next, AheadNext::NoRoom);
        assert!(saved <= most && saved + Bytes::mib(8) > most, "{saved} of {most}");
        assert!(pool.counts().host <= most);
        // What is saved is kept up to date within the same memory.
        block.seed = 4;
        block.write();
        // A page that was not saved, and has changed, is found rested at the second look.
        back_up(&pool);
        assert_eq!(back_up(&pool).1, AheadNext::NoRoom);
        assert!(pool.counts().host <= most && pool.counts().backup == saved);
        check(&pool);
        if policy.backup_most.is_none() {
            let slept = pool.sleep(Scope::Whole).unwrap();
            assert_eq!(slept.unchanged, saved);
            pool.wake(Scope::Whole).unwrap();
        }
        block.assert_is_whole();
    }
}

#[test]
fn a_device_without_room_for_the_ring_is_left_alone() {
    let pool = pool_on(&host(Bytes::mib(24)), ahead());
    let block = Written::new(&pool, Bytes::mib(12), Tag::default(), 2);
    assert_eq!(back_up(&pool), (Bytes::ZERO, AheadNext::NoRoom));
    check(&pool);
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Whole).unwrap();
    block.assert_is_whole();
}

#[test]
fn backups_of_freed_blocks_go() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let blocks = [1, 2].map(|seed| Written::new(&pool, Bytes::mib(8), Tag::default(), seed));
    back_up(&pool);
    assert_eq!(pool.counts().backup, Bytes::mib(16));
    pool.free(blocks[0].address, STREAM).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    back_up(&pool);
    assert_eq!(pool.counts().backup, Bytes::mib(8));
    pool.free(blocks[1].address, STREAM).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    back_up(&pool);
    assert_eq!(pool.counts().backup, Bytes::ZERO);
    check(&pool);
}

#[test]
fn a_step_gives_way_to_turns() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let cache = pool.tag("cache", SleepPolicy::Offload).unwrap();
    let blocks = [Tag::default(), cache].map(|tag| Written::new(&pool, Bytes::mib(8), tag, 9));
    let asked = AtomicBool::new(false);
    let during = || {
        asked.store(true, SeqCst);
        pool.back_up_some(SOME).unwrap().next == AheadNext::Busy
    };
    pool.sleep_within(Scope::Tags(&[cache]), Limit::new(&during)).unwrap();
    assert!(asked.load(SeqCst));
    assert_eq!(back_up(&pool), (Bytes::mib(8), AheadNext::Nothing), "of the tag that is awake");
    pool.wake_within(Scope::Whole, Limit::new(&during)).unwrap();
    blocks.iter().for_each(Written::assert_is_whole);
    // A tag that falls asleep in the middle of a round is left out.
    for block in &blocks {
        block.bytes()[0] ^= 1;
    }
    pool.back_up_some(SOME).unwrap();
    pool.sleep(Scope::Tags(&[Tag::default()])).unwrap();
    back_up(&pool);
    pool.wake(Scope::Whole).unwrap();
    for block in &blocks {
        block.bytes()[0] ^= 1;
    }
    check_whole(&pool, &blocks);
}

// The page that is being read is freed and its memory taken: the trim waits for the read.
#[test]
fn a_page_that_is_being_read_can_be_freed_and_trimmed() {
    let faults = Arc::new(Faults::default());
    let device = device_over(&host(Bytes::mib(64)), &faults);
    let pool = pool_on(&device, ahead());
    for moment in 0..3 {
        let block = Written::new(&pool, Bytes::mib(8), Tag::default(), 3);
        let kept = Written::new(&pool, Bytes::mib(8), Tag::default(), 4);
        pool.back_up_some(SOME).unwrap();
        let (trimming, seen) = (Arc::new(Mutex::new(None)), Mutex::new(0));
        let (started, other) = (Arc::clone(&trimming), pool.clone());
        faults.meddle(move |now| {
            let mut seen = seen.lock().unwrap();
            if !now.is_of(block.address) || matches!(now, Moment::Unmapping(..)) {
                return;
            }
            if *seen == moment {
                let pool = other.clone();
                pool.free(block.address, STREAM).unwrap();
                let trim = thread::spawn(move || pool.trim(Bytes::ZERO));
                // It is unlikely to come to the unmap before the read ends, but then it waits.
                thread::yield_now();
                *started.lock().unwrap() = Some(trim);
            }
            *seen += 1;
        });
        for _ in 0..3 {
            pool.back_up_some(SOME).unwrap();
        }
        faults.leave_alone();
        if let Some(trim) = trimming.lock().unwrap().take() {
            assert!(trim.join().unwrap().unwrap() >= Bytes::mib(6));
        }
        pool.check();
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        kept.assert_is_whole();
        pool.free(kept.address, STREAM).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
    }
}

#[test]
fn blocks_come_and_go_and_are_written_meanwhile() {
    for packing in [false, true] {
        let device = host(Bytes::mib(160));
        let pool =
            pool_on(&device, ahead().packing(packing).numbers(|numbers| numbers.compare_each = 1));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let steps = scope.spawn(|| {
                let mut saved = Bytes::ZERO;
                while !is_over.load(SeqCst) {
                    saved += pool.back_up_some(SOME).unwrap().saved;
                }
                saved
            });
            let players: Vec<_> = (0..2)
                .map(|seed| {
                    let pool = &pool;
                    scope.spawn(move || play(pool, seed))
                })
                .collect();
            for player in players {
                player.join().unwrap();
            }
            is_over.store(true, SeqCst);
            assert!(steps.join().unwrap() > Bytes::ZERO);
        });
        while pool.back_up_some(SOME).unwrap().next == AheadNext::More {}
        check(&pool);
        assert_eq!(in_use(&device), pool.counts().physical, "the ring is gone");
    }
}

fn play(pool: &Pool, seed: u64) {
    let mut dice = Dice(seed);
    let tag = pool.tag(&format!("player {seed}"), SleepPolicy::Offload).unwrap();
    let mut blocks: Vec<Written> = Vec::new();
    for round in 0..60 {
        match dice.roll(12) {
            0..4 if blocks.len() < 6 => {
                let size = Bytes(1 + dice.roll(6 << 20));
                blocks.push(Written::new(pool, size, tag, dice.roll(100)));
            }
            4..7 if !blocks.is_empty() => {
                let block = blocks.swap_remove(dice.roll(blocks.len() as u64) as usize);
                block.assert_is_whole();
                pool.free(block.address, StreamId(0)).unwrap();
            }
            7 | 8 if !blocks.is_empty() => {
                let index = dice.roll(blocks.len() as u64) as usize;
                blocks[index].seed = round;
                blocks[index].write();
            }
            9 => drop(pool.trim(Bytes::ZERO).unwrap()),
            10 => {
                pool.sleep(Scope::Tags(&[tag])).unwrap();
                pool.wake(Scope::Tags(&[tag])).unwrap();
                blocks.iter().for_each(Written::assert_is_whole);
            }
            _ => thread::yield_now(),
        }
    }
    blocks.iter().for_each(Written::assert_is_whole);
}

// Nothing is lost and nothing leaks, whatever a step is refused.
#[test]
fn refusals_spoil_no_backup() {
    for seed in 0..8 {
        let faults = Arc::new(Faults::default());
        let device = device_over(&host(Bytes::mib(96)), &faults);
        let direct = [Bytes::ZERO, Bytes::mib(5)][seed as usize % 2];
        let policy = ahead()
            .packing(seed % 4 < 2)
            .numbers(|numbers| numbers.compare_each = 1)
            .direct_backups(direct);
        let pool = pool_on(&device, policy);
        let mut blocks: Vec<Written> = (0..3)
            .map(|number| Written::new(&pool, Bytes::mib(3), Tag::default(), number))
            .collect();
        let mut dice = Dice(seed);
        for round in 0..8 {
            faults.arm(&mut dice);
            for _ in 0..4 {
                // A call that is refused once is made again, so the step may succeed.
                drop(pool.back_up_some(SOME));
                pool.check();
            }
            faults.disarm();
            let block = &mut blocks[round % 3];
            block.seed += 3;
            block.write();
        }
        assert!(faults.struck() > 0, "the faults of seed {seed} were for others");
        assert_eq!(back_up(&pool).1, AheadNext::Nothing);
        // Gives back what was refused meanwhile.
        drop(device.reserve(PAGE).unwrap());
        check(&pool);
        assert_eq!(pool.sleep(Scope::Whole).unwrap().copied, Bytes::ZERO, "seed {seed}");
        pool.wake(Scope::Whole).unwrap();
        blocks.iter().for_each(Written::assert_is_whole);
    }
}

#[test]
fn a_wrong_kernel_spoils_no_backup() {
    let faults = Arc::new(Faults::default());
    let device = device_over(&host(Bytes::mib(64)), &faults);
    let pool = pool_on(&device, ahead().packing(true));
    let block = Written::new(&pool, Bytes::mib(16), Tag::default(), 3);
    faults.spoil_packs(2);
    pool.back_up_some(SOME).unwrap();
    let report = pool.back_up_some(SOME).unwrap();
    assert!(report.saved < Bytes::mib(16), "{report:?}");
    pool.check();
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!(slept.copied, Bytes::mib(16) - report.saved);
    pool.wake(Scope::Whole).unwrap();
    block.assert_is_whole();
}

#[test]
fn a_policy_that_changes_takes_backups_along() {
    let pool = pool_on(&host(Bytes::mib(64)), ahead());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let _block = Written::new(&pool, Bytes::mib(8), weights, 3);
    back_up(&pool);
    assert_eq!(pool.counts().backup, Bytes::mib(8));
    pool.set_policy(weights, SleepPolicy::Discard).unwrap();
    assert_eq!(pool.counts().backup, Bytes::ZERO);
    assert_eq!(back_up(&pool), (Bytes::ZERO, AheadNext::Nothing));
    check(&pool);
    let refused: Result<AheadReport, Error> = pool.back_up_some(Bytes::ZERO);
    assert_eq!(refused.unwrap().next, AheadNext::Nothing);
}
