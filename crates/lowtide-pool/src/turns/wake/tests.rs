use lowtide_device::{Address, Device, HostOptions};

use super::*;
use crate::state::arenas::ArenaId;
use crate::{Block, LostBlock, Policy, StreamId, Tag};

const STREAM: StreamId = StreamId(0);
/// The registered part of the backups: nothing, the first page, all of it.
const DIRECT: [Bytes; 3] = [Bytes::ZERO, Bytes(PAGE), Bytes(u64::MAX)];

fn pool(policy: Policy) -> Pool {
    let options = HostOptions { budget: Some(Bytes::mib(32)), small_pages: true };
    Pool::builder(&Device::host(options).unwrap()).policy(policy).build().unwrap()
}

// The arena of a tag's large blocks.
fn large(tag: Tag) -> ArenaId {
    ArenaId::new(tag, false)
}

// Blocks of this size lie at odd MiB, so that two of them share a page.
fn block(pool: &Pool, tag: Tag, byte: u8) -> Address {
    let size = Bytes::mib(5);
    let address = pool.alloc(size, STREAM, tag).unwrap();
    let (reservation, offset) = pool.place_of(address).unwrap();
    let stream = pool.device().stream().unwrap();
    stream.fill((&reservation, offset), byte, size).unwrap();
    stream.synchronize().unwrap();
    address
}

fn assert_is_full_of(byte: u8, pool: &Pool, block: Address) {
    let size = Bytes::mib(5);
    let (reservation, offset) = pool.place_of(block).unwrap();
    let (stream, memory) =
        (pool.device().stream().unwrap(), pool.device().host_memory(size).unwrap());
    stream.copy_out((&reservation, offset), (&memory, Bytes::ZERO), size).unwrap();
    stream.synchronize().unwrap();
    let mut bytes = vec![0; size.as_usize()];
    memory.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(bytes.iter().position(|found| *found != byte), None);
}

// Flips a bit of a saved page, or flips it back.
fn flip(pool: &Pool, arena_id: ArenaId, page: u64, at: Bytes) {
    let mut state = pool.state().unwrap();
    let BackupLocation::Page(from) = state.backups.pages(arena_id)[&page].location else {
        panic!("nothing is stored of page {page}")
    };
    let (memory, at, mut byte) = (state.backups.memory(from.slab), from.offset() + at, [0]);
    memory.read(at, &mut byte).unwrap();
    memory.write(at, &[byte[0] ^ 0x20]).unwrap();
}

#[test]
fn a_backup_with_one_wrong_bit_is_caught_and_named() {
    let kept = DIRECT.map(|direct_backups| (direct_backups, true));
    for (direct_backups, keep_backups) in kept.into_iter().chain([(DIRECT[1], false)]) {
        let pool = pool(Policy { keep_backups, direct_backups, ..Policy::default() });
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let blocks = [1, 2].map(|byte| block(&pool, weights, byte));
        let other = block(&pool, Tag::default(), 3);
        let (arena_id, base) = (large(weights), blocks[0]);
        pool.sleep(Scope::Whole).unwrap();
        let asleep = pool.counts();
        // The second block begins at 5 MiB: its first page is the first block's last.
        for (page, at, named) in [
            (Bytes::ZERO, Bytes::ZERO, blocks[0]),
            (Bytes::mib(6), Bytes(777), blocks[1]),
            (Bytes::mib(4), Bytes(PAGE - 1), blocks[0]),
        ] {
            flip(&pool, arena_id, page.0, at);
            for _ in 0..2 {
                let refused = pool.wake(Scope::Whole).unwrap_err();
                let Error::Corrupt { tag, block, page: wrong, others } = refused else {
                    panic!("{refused}")
                };
                let found = (tag.as_str(), block, wrong);
                assert_eq!(found, ("weights", named, base.plus(page)));
                assert_eq!(others, []);
                assert_eq!(pool.phase(weights).unwrap(), Phase::Asleep);
                assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
                assert_eq!(pool.counts(), asleep, "its backup is kept");
                assert_eq!(pool.device().usage().unwrap().in_use(), Bytes::ZERO);
                pool.check();
            }
            flip(&pool, arena_id, page.0, at);
        }
        // A tag beside it is not held up.
        flip(&pool, arena_id, 0, Bytes(5));
        pool.wake(Scope::Tags(&[Tag::default()])).unwrap();
        assert_is_full_of(3, &pool, other);
        assert!(matches!(pool.wake(Scope::Whole), Err(Error::Corrupt { .. })));
        flip(&pool, arena_id, 0, Bytes(5));
        assert_eq!(pool.wake(Scope::Whole).unwrap().copied_again, 0);
        assert_is_full_of(1, &pool, blocks[0]);
        assert_is_full_of(2, &pool, blocks[1]);
        pool.check();
    }
}

#[test]
fn what_is_wrong_but_freed_holds_nothing_up() {
    let pool = pool(Policy::default());
    let blocks = [1, 2].map(|byte| block(&pool, Tag::default(), byte));
    pool.sleep(Scope::Whole).unwrap();
    flip(&pool, large(Tag::default()), Bytes::mib(8).0, Bytes::ZERO);
    assert!(matches!(pool.wake(Scope::Whole), Err(Error::Corrupt { .. })));
    pool.free(blocks[1], STREAM).unwrap();
    pool.wake(Scope::Whole).unwrap();
    assert_is_full_of(1, &pool, blocks[0]);
    pool.check();
}

#[test]
fn a_page_that_is_wrong_on_the_device_is_copied_once_more() {
    for direct_backups in DIRECT {
        let pool = pool(Policy { direct_backups, ..Policy::default() });
        let address = block(&pool, Tag::default(), 7);
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        let (reservation, _) = pool.place_of(address).unwrap();
        let stream = pool.device().stream().unwrap();
        for page in [0, PAGE] {
            stream.fill((&reservation, Bytes(page + 9)), 0, Bytes(1)).unwrap();
        }
        let mut backups = std::mem::take(&mut pool.state().unwrap().backups);
        let arena_id = large(Tag::default());
        let (stale, kept, chunks) = (Vec::new(), Vec::new(), Vec::new());
        let part =
            WakePart { turning: 0, arena_id, restores: true, reservation, stale, kept, chunks };
        for page in [0, PAGE] {
            assert!(pool.copy_again(&stream, &part, page, &mut backups).unwrap());
        }
        pool.state().unwrap().backups = backups;
        assert_is_full_of(7, &pool, address);
        pool.check();
    }
}

// What a lost block says until all of it was written.
fn assert_is_lost(block: &Block) {
    let mut byte = [0];
    let refused = [block.read(Bytes(9), &mut byte), block.write(Bytes(1), &[1, 2, 3])];
    for refused in refused {
        let Err(Error::Lost { tag, block: named }) = refused else { panic!("{refused:?}") };
        assert_eq!((tag.as_str(), named), ("weights", block.address()));
    }
}

fn filled(pool: &Pool, tag: Tag, byte: u8) -> Block {
    let block = pool.block_tagged(Bytes::mib(5), tag).unwrap();
    block.fill(byte).unwrap();
    block
}

fn lost(block: &Block) -> LostBlock {
    LostBlock { tag: "weights".to_owned(), address: block.address().0, size: block.size() }
}

#[test]
fn a_bad_backup_page_loses_the_blocks_on_it_and_no_others() {
    for direct_backups in DIRECT {
        for keep_backups in [true, false] {
            let pool = pool(Policy { keep_backups, direct_backups, ..Policy::default() });
            let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
            let [one, two, three] = [1, 2, 3].map(|byte| filled(&pool, weights, byte));
            let other = filled(&pool, Tag::default(), 4);
            pool.sleep(Scope::Whole).unwrap();
            // The first two share this page.
            flip(&pool, large(weights), Bytes::mib(4).0, Bytes(3));
            let refused = pool.wake(Scope::Whole).unwrap_err().to_string();
            assert!(refused.contains("`wake_losing`"), "{refused}");
            let woke = pool.wake_losing(Scope::Whole, Limit::NONE).unwrap();
            assert_eq!(woke.lost, [lost(&one), lost(&two)]);
            assert_eq!((woke.tags, woke.copied_again), (2, 0));
            pool.check();
            assert_is_full_of(3, &pool, three.address());
            assert_is_full_of(4, &pool, other.address());
            assert_is_lost(&one);
            assert_is_lost(&two);
            // What it had before: the backup must not pass for unchanged.
            one.fill(1).unwrap();
            two.write(Bytes::ZERO, &vec![2; 5 << 20]).unwrap();
            for _ in 0..2 {
                assert_is_full_of(1, &pool, one.address());
                assert_is_full_of(2, &pool, two.address());
                assert_is_full_of(3, &pool, three.address());
                two.read(Bytes::ZERO, &mut [0]).unwrap();
                pool.sleep(Scope::Whole).unwrap();
                assert_eq!(pool.wake(Scope::Whole).unwrap().lost, []);
                pool.check();
            }
        }
    }
}

#[test]
fn a_block_stays_lost_through_a_sleep_until_it_is_written_or_freed() {
    let pool = pool(Policy::default());
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let [one, two, three] = [1, 2, 3].map(|byte| filled(&pool, weights, byte));
    pool.sleep(Scope::Whole).unwrap();
    for page in [Bytes::ZERO, Bytes::mib(8), Bytes::mib(12)] {
        flip(&pool, large(weights), page.0, Bytes(PAGE - 1));
    }
    let Err(Error::Corrupt { page, others, .. }) = pool.wake(Scope::Whole) else { panic!() };
    assert_eq!(page, one.address());
    assert_eq!(others, [8, 12].map(|mib| one.address().plus(Bytes::mib(mib))));
    // Nobody misses what is freed.
    let address = three.address();
    drop(three);
    let woke = pool.wake_losing(Scope::Whole, Limit::NONE).unwrap();
    assert_eq!(woke.lost, [lost(&one), lost(&two)]);
    pool.sleep(Scope::Whole).unwrap();
    assert_eq!(pool.wake(Scope::Whole).unwrap().lost, []);
    assert_is_lost(&one);
    assert_is_lost(&two);
    let place = two.address();
    drop(two);
    pool.check();
    let again = [(); 2].map(|()| pool.block_tagged(Bytes::mib(5), weights).unwrap());
    assert!(again.iter().any(|block| [place, address].contains(&block.address())));
    for block in &again {
        block.read(Bytes::ZERO, &mut [0]).unwrap();
    }
    assert_is_lost(&one);
    one.fill(0).unwrap();
    one.read(Bytes::ZERO, &mut [0]).unwrap();
    pool.check();
}

#[test]
fn a_backup_that_went_bad_is_found_while_the_device_still_has_the_bytes() {
    for direct_backups in DIRECT {
        for check_backups in [true, false] {
            let pool = pool(Policy { direct_backups, check_backups, ..Policy::default() });
            let address = block(&pool, Tag::default(), 7);
            pool.sleep(Scope::Whole).unwrap();
            pool.wake(Scope::Whole).unwrap();
            flip(&pool, large(Tag::default()), PAGE, Bytes(5));
            let slept = pool.sleep(Scope::Whole).unwrap();
            assert_eq!((slept.copied, slept.copied_again), (Bytes::ZERO, check_backups.into()));
            pool.check();
            let woke = pool.wake(Scope::Whole);
            if check_backups {
                woke.unwrap();
                assert_is_full_of(7, &pool, address);
            } else {
                assert!(matches!(woke, Err(Error::Corrupt { .. })), "{woke:?}");
            }
        }
    }
}
