//! Large chunks: few for a block of many pages, and none of them is kept by another block.

use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{Policy, Pool, StreamId, Tag};

const STREAM: StreamId = StreamId(1);
const MIB: u64 = 1 << 20;

fn pool() -> Pool {
    let (device, _) = Device::dry_run(Bytes::gib(8));
    Pool::builder(&device).build().unwrap()
}

fn alloc(pool: &Pool, size: Bytes) -> Address {
    pool.alloc(size, STREAM, Tag::default()).unwrap()
}

fn free(pool: &Pool, block: Address) {
    pool.free(block, STREAM).unwrap();
    pool.check();
}

/// The sizes of all chunks of the room of this block, in MiB.
fn chunks(pool: &Pool, block: Address) -> Vec<u64> {
    let (reservation, _) = pool.place_of(block).unwrap();
    let ranges = reservation.mappings().into_iter().map(|mapping| mapping.range);
    ranges.map(|range| (range.end - range.start) / MIB).collect()
}

#[test]
fn a_block_of_many_pages_has_few_chunks() {
    let pool = pool();
    let block = alloc(&pool, Bytes::mib(224));
    assert_eq!(chunks(&pool, block), [224]);
    alloc(&pool, Bytes::mib(640));
    assert_eq!(chunks(&pool, block), [224, 214, 214, 212], "of 256 MiB at most, and about equal");
    alloc(&pool, Bytes(3 * MIB + 512));
    alloc(&pool, Bytes::mib(9));
    let last = &chunks(&pool, block)[4..];
    assert_eq!(last, [2, 2, 8, 2], "what two blocks share is a page of its own");
    pool.check();
}

#[test]
fn the_same_size_again_needs_no_driver() {
    let pool = pool();
    let blocks = [48, 32, 224].map(|size| (alloc(&pool, Bytes::mib(size)), size));
    let calls = pool.device().calls();
    for _ in 0..3 {
        for (block, _) in blocks {
            free(&pool, block);
        }
        for (block, size) in blocks {
            assert_eq!(alloc(&pool, Bytes::mib(size)), block);
        }
    }
    assert_eq!(pool.device().calls(), calls);
    assert_eq!(chunks(&pool, blocks[0].0), [48, 32, 224]);
}

#[test]
fn a_small_block_does_not_keep_a_large_chunk() {
    let pool = pool();
    let blocks = [64, 64, 64].map(|size| alloc(&pool, Bytes::mib(size)));
    for block in blocks {
        free(&pool, block);
    }
    let kept = alloc(&pool, Bytes::mib(6));
    assert_eq!(pool.counts().physical, Bytes::mib(2 * 64 + 6), "one chunk was given back for it");
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::mib(2 * 64));
    assert_eq!(pool.counts().physical, Bytes::mib(6));
    alloc(&pool, Bytes::mib(64));
    assert_eq!(chunks(&pool, kept), [2, 2, 2, 16, 16, 16, 16], "sizes are mixed: chunks are small");
    pool.check();
}

#[test]
fn a_block_that_would_end_in_a_large_chunk_gives_it_back() {
    let pool = pool();
    let [first, second, _] = [64, 64, 8].map(|size| alloc(&pool, Bytes::mib(size)));
    free(&pool, first);
    pool.trim(Bytes::ZERO).unwrap();
    free(&pool, second);
    // The hole has 64 MiB; the rest would come from the chunk behind it.
    let block = alloc(&pool, Bytes::mib(80));
    assert_eq!((block, pool.counts().physical), (first, Bytes::mib(80 + 8)));
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO);
    pool.check();
}

#[test]
fn a_large_chunk_stays_where_the_device_has_nothing_else() {
    let (device, _) = Device::dry_run(Bytes::mib(128));
    let pool = Pool::builder(&device).build().unwrap();
    let block = alloc(&pool, Bytes::mib(64));
    let other = device.create(Bytes::mib(64)).unwrap();
    free(&pool, block);
    assert_eq!(alloc(&pool, Bytes::mib(6)), block);
    assert_eq!(pool.counts().physical, Bytes::mib(64), "others could have taken it");
    drop(other);
    pool.check();
}

#[test]
fn an_empty_tag_begins_anew() {
    let pool = pool();
    let block = alloc(&pool, Bytes::mib(64));
    free(&pool, block);
    let small = alloc(&pool, Bytes::mib(6));
    free(&pool, small);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.counts().physical, Bytes::ZERO);
    let block = alloc(&pool, Bytes::mib(64));
    assert_eq!(chunks(&pool, block), [64], "nothing is left of what was mixed");
}

#[test]
fn no_chunk_is_large_where_the_policy_says_so_or_memory_is_tight() {
    let (device, _) = Device::dry_run(Bytes::mib(256));
    let policy = Policy::default().numbers(|numbers| numbers.large_chunk_most = Bytes::ZERO);
    let none = Pool::builder(&device).policy(policy).build().unwrap();
    let block = alloc(&none, Bytes::mib(64));
    assert_eq!(chunks(&none, block), [16; 4]);
    free(&none, block);
    drop(none);
    let pool = Pool::builder(&device).build().unwrap();
    let first = alloc(&pool, Bytes::mib(96));
    assert_eq!(chunks(&pool, first), [96]);
    alloc(&pool, Bytes::mib(64));
    assert_eq!(chunks(&pool, first)[1..], [2; 32], "more than half of the device is taken");
    pool.check();
}
