//! Blocks that share no chunk with another, before and after a wake.

use std::ops::Range;

use lowtide_device::{Address, Bytes};
use lowtide_pool::{Policy, Pool, Scope, StreamId, Tag};

use crate::written::{Written, check, host, in_use};

const MIB: u64 = 1 << 20;

/// The chunks under a block, from its start.
fn chunks(pool: &Pool, block: Address, size: Bytes) -> Vec<Range<u64>> {
    let (reservation, offset) = pool.place_of(block).unwrap();
    let block = offset.0..offset.0 + size.0;
    let all = reservation.mappings().into_iter().map(|mapping| mapping.range);
    let under = all.filter(|chunk| chunk.start < block.end && block.start < chunk.end);
    let under: Vec<Range<u64>> = under.collect();
    assert!(under.iter().all(|chunk| block.start <= chunk.start && chunk.end <= block.end));
    under.into_iter().map(|chunk| chunk.start - block.start..chunk.end - block.start).collect()
}

#[test]
fn each_block_has_its_own_chunks_after_a_wake_too() {
    let device = host(Bytes::mib(128));
    let policy = Policy::default().apart(Some(Bytes::mib(8)));
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    // (the block, the largest of its chunks, how many there are), in MiB
    let sizes = [(2, 2, 1), (6, 6, 1), (8, 8, 1), (10, 6, 2), (32, 8, 4), (4, 4, 1)];
    let blocks: Vec<Written> = (0..)
        .zip(sizes)
        .map(|(seed, (size, ..))| Written::new(&pool, Bytes::mib(size), Tag::default(), seed))
        .collect();
    for turn in 0..3 {
        for (block, (size, largest, count)) in blocks.iter().zip(sizes) {
            let chunks = chunks(&pool, block.address, Bytes::mib(size));
            assert_eq!(chunks.len(), count, "turn {turn}, {size} MiB: {chunks:?}");
            assert!(chunks.iter().all(|chunk| chunk.end - chunk.start <= largest * MIB));
            block.assert_is_whole();
        }
        pool.sleep(Scope::Whole).unwrap();
        assert_eq!(in_use(&device), Bytes::ZERO);
        pool.wake(Scope::Whole).unwrap();
    }
    check(&pool);
    // What one gives back is all its own: nothing of it stays.
    let before = in_use(&device);
    pool.free(blocks[4].address, StreamId(0)).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(before - in_use(&device), Bytes::mib(32));
    for block in [0, 1, 2, 3, 5].map(|index| &blocks[index]) {
        block.assert_is_whole();
    }
}

/// Returns the driver calls of a sleep, and of the wake after it, with so many blocks that are all zeros.
fn calls(blocks: u64) -> [u64; 2] {
    let device = host(Bytes::mib(2 * blocks + 64));
    let policy = Policy::default().apart(Some(Bytes::mib(8)));
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    for _ in 0..blocks {
        pool.alloc(Bytes::mib(2), StreamId(0), Tag::default()).unwrap();
    }
    pool.prepare_sleep().unwrap();
    let counted = |turn: &dyn Fn()| {
        let before = device.calls();
        turn();
        device.calls() - before
    };
    let slept = counted(&|| assert_eq!(pool.sleep(Scope::Whole).unwrap().tags, 1));
    [slept, counted(&|| assert_eq!(pool.wake(Scope::Whole).unwrap().tags, 1))]
}

#[test]
fn a_digest_and_a_wait_are_for_many_blocks() {
    let (few, many) = (calls(16), calls(116));
    // Unmapped and released; created, mapped, opened and filled.
    let of_hundred = [0, 1].map(|turn| many[turn] - few[turn]);
    assert_eq!(of_hundred, [200, 400], "{few:?} and {many:?}");
}
