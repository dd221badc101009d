//! Odd settings and odd moments: no panic, nothing mistaken for something else.

use std::thread;
use std::time::Duration;

use lowtide_device::{Bytes, Device, HostOptions};
use lowtide_pool::{Policy, Pool, Scope, SleepPolicy, StreamId, Tag};

#[test]
fn absurd_policies_are_followed_without_a_panic() {
    let odd = [0, 1, 3, 511, (2 << 20) + 1, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let with: [fn(Policy, u64) -> Policy; 12] = [
        |policy, odd| policy.numbers(|numbers| numbers.small_most = Bytes(odd)),
        |policy, odd| policy.numbers(|numbers| numbers.chunks_per_block = odd),
        |policy, odd| policy.numbers(|numbers| numbers.chunks_per_block_when_tight = odd),
        |policy, odd| policy.numbers(|numbers| numbers.chunk_most = Bytes(odd)),
        |policy, odd| policy.numbers(|numbers| numbers.wake_chunk_most = Bytes(odd)),
        |policy, odd| policy.numbers(|numbers| numbers.slack_thousandths = odd),
        |policy, odd| policy.numbers(|numbers| numbers.spare_thousandths = odd),
        |policy, odd| policy.numbers(|numbers| numbers.kept_free_thousandths = odd),
        |policy, odd| policy.numbers(|numbers| numbers.cheap_part = odd),
        |policy, odd| policy.backup_most(Some(Bytes(odd))),
        |policy, odd| policy.direct_backups(Bytes(odd)),
        |policy, odd| policy.apart(Some(Bytes(odd))),
    ];
    for set in with {
        for value in odd {
            let policy = set(Policy::default(), value);
            let device =
                Device::host(HostOptions { budget: Some(Bytes::mib(32)), small_pages: true })
                    .unwrap();
            let pool = Pool::builder(&device).policy(policy).build().unwrap();
            let large = pool.block(Bytes::mib(9)).unwrap();
            let small = pool.block(Bytes(700)).unwrap();
            drop(pool.block(Bytes::mib(5)).unwrap());
            let other = pool.block(Bytes::mib(7)).unwrap();
            large.fill(7).unwrap();
            small.fill(9).unwrap();
            drop(other);
            // A backup that may not be made is refused, and everything is as before.
            if pool.sleep(Scope::Whole).is_ok() {
                pool.wake(Scope::Whole).unwrap();
            } else {
                assert!(policy.backup_most.is_some(), "{policy:?}");
            }
            let mut bytes = [0; 700];
            small.read(Bytes::ZERO, &mut bytes).unwrap();
            assert_eq!(bytes, [9; 700], "{policy:?}");
            large.read(Bytes::mib(8), &mut bytes).unwrap();
            assert_eq!(bytes, [7; 700], "{policy:?}");
            pool.check();
        }
    }
}

#[test]
fn tags_of_many_pools_are_never_taken_for_each_other() {
    let device = Device::dry_run(Bytes::gib(1)).0;
    let first = Pool::new(&device).unwrap();
    let tag = first.tag("weights", SleepPolicy::Offload).unwrap();
    for _ in 0..66_000 {
        let other = Pool::new(&device).unwrap();
        other.tag("weights", SleepPolicy::Discard).unwrap();
        assert!(other.block_tagged(Bytes(1), tag).is_err(), "a tag of another pool");
    }
}

#[test]
fn a_pool_may_be_checked_while_it_sleeps_wakes_and_allocates() {
    let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), small_pages: true });
    let pool = Pool::new(&device.unwrap()).unwrap();
    let tag = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let kept = pool.block_tagged(Bytes::mib(16), tag).unwrap();
    thread::scope(|scope| {
        let turns = scope.spawn(|| {
            for _ in 0..20 {
                pool.sleep(Scope::Tags(&[tag])).unwrap();
                pool.wake(Scope::Tags(&[tag])).unwrap();
            }
        });
        let allocates = scope.spawn(|| {
            for size in 1..200 {
                drop(pool.block(Bytes::mib(size % 23 + 1)).unwrap());
                pool.trim(Bytes::ZERO).unwrap();
            }
        });
        while !turns.is_finished() || !allocates.is_finished() {
            pool.check();
            // A core for the other two, too.
            thread::sleep(Duration::from_micros(100));
        }
    });
    drop(kept);
}

#[test]
fn a_live_block_says_where_it_was_allocated() {
    let pool = Pool::new(&Device::dry_run(Bytes::gib(1)).0).unwrap();
    let (one, line) = (pool.block(Bytes::mib(20)).unwrap(), line!());
    let more: Vec<_> = (0..3).map(|_| pool.block(Bytes::mib(2)).unwrap()).collect();
    let plain = pool.alloc(Bytes::mib(1), StreamId::default(), Tag::default()).unwrap();
    let live = pool.live_blocks();
    let place = live[0].since.unwrap();
    assert_eq!((place.file(), place.line()), (file!(), line));
    let sums: Vec<_> = live.iter().map(|entry| (entry.blocks, entry.bytes)).collect();
    assert_eq!(sums, [(1, Bytes::mib(20)), (3, Bytes::mib(6)), (1, Bytes::mib(1))]);
    assert_eq!(live[2].since, None, "an address says nothing");
    drop(more);
    // A block that is left to the caller is one by its address alone.
    let address = one.into_address();
    let live = pool.live_blocks();
    assert_eq!((live.len(), live[0].since, live[0].blocks), (1, None, 2));
    pool.free(address, StreamId::default()).unwrap();
    pool.free(plain, StreamId::default()).unwrap();
    assert!(pool.live_blocks().is_empty());
}
