//! Random operations against a naive model, with every invariant checked after each step: on books
//! and on real pages.

use std::sync::Arc;

use crate::game::{ByHand, Game, Ground, any_size};
use crate::written::host;
use lowtide_device::{Bytes, Device};
use lowtide_pool::{Fence, Pool, StreamId, Tag};
use lowtide_testing::{Dice, is_long_run, share};

#[test]
fn a_million_operations_on_books() {
    let games = [(1, false), (2, true), (3, false), (4, true)];
    for (seed, fenced) in games.into_iter().take(if is_long_run() { 4 } else { 2 }) {
        let (device, _) = Device::dry_run(Bytes::mib(512));
        let mut game = Game::new(&device, seed, fenced, Ground::Books);
        for _ in share(0..250_000) {
            game.step(48, 64 << 20);
            game.check();
        }
        game.check_device(Bytes::ZERO);
        assert!(game.refused > 0, "the device was never full");
        game.finish(Bytes::ZERO);
    }
}

#[test]
fn real_pages_keep_their_bytes() {
    for (seed, fenced) in [(5, false), (6, true)] {
        let device = host(Bytes::mib(96));
        let mut game = Game::new(&device, seed, fenced, Ground::Bytes);
        for _ in share(0..10_000) {
            game.step(40, 16 << 20);
            game.check();
            game.check_device(Bytes::ZERO);
        }
        assert!(game.slept > 0, "nothing ever slept");
        game.finish(Bytes::ZERO);
    }
}

#[test]
fn a_block_waits_for_its_stream() {
    let (device, _) = Device::dry_run(Bytes::gib(1));
    let fence = Arc::new(ByHand::default());
    let pool = Pool::builder(&device).fence(fence.clone()).build().unwrap();
    let (own, other) = (StreamId(1), StreamId(2));
    let first = pool.alloc(Bytes::mib(10), own, Tag::default()).unwrap();
    pool.free(first, own).unwrap();
    let elsewhere = pool.alloc(Bytes::mib(10), other, Tag::default()).unwrap();
    assert_ne!(elsewhere, first, "stream 1 may still be using it");
    assert_eq!(
        pool.alloc(Bytes::mib(10), own, Tag::default()).unwrap(),
        first,
        "its own stream may have it"
    );
    pool.free(first, own).unwrap();
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO, "nor can it be unmapped");
    fence.wait(own).unwrap();
    assert_eq!(
        pool.alloc(Bytes::mib(10), other, Tag::default()).unwrap(),
        first,
        "now it is anybody's"
    );
    pool.check();
}

#[test]
fn threads_share_a_pool() {
    let (device, _) = Device::dry_run(Bytes::gib(4));
    let pool = Pool::new(&device).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let pool = &pool;
            scope.spawn(move || {
                println!("seed {seed}");
                let (mut dice, mut live) = (Dice(seed), Vec::new());
                for _ in 0..20_000 {
                    if live.len() < 20 && dice.roll(2) == 0 {
                        live.push(
                            pool.alloc(
                                Bytes(any_size(&mut dice, 40 << 20)),
                                StreamId(seed),
                                Tag::default(),
                            )
                            .unwrap(),
                        );
                    } else if !live.is_empty() {
                        let index = dice.roll(live.len() as u64) as usize;
                        pool.free(live.swap_remove(index), StreamId(seed)).unwrap();
                    }
                    if dice.roll(500) == 0 {
                        pool.trim(Bytes::ZERO).unwrap();
                    }
                }
                for address in live {
                    pool.free(address, StreamId(seed)).unwrap();
                }
            });
        }
    });
    pool.check();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(device.usage().unwrap().in_use(), Bytes::ZERO);
}
