//! Copies that arrive wrong: a wake compares every page with its digest before anything may use it.

use std::sync::Arc;

use lowtide_device::{Bytes, Device};
use lowtide_pool::{Error, Phase, Policy, Pool, Scope, Tag};
use lowtide_testing::refusing::{Faults, Moment, device_over};

use crate::strays::{get, put};
use crate::written::{PAGE, Written, check, host, in_use};

/// A pool that sleeps, over a device whose copies can be meddled with.
struct World {
    real: Device,
    faults: Arc<Faults>,
    pool: Pool,
    blocks: [Written; 2],
}

impl World {
    fn new(policy: Policy) -> World {
        let (real, faults) = (host(Bytes::mib(64)), Arc::new(Faults::default()));
        let pool = Pool::builder(&device_over(&real, &faults)).policy(policy).build().unwrap();
        let block = |size, seed| Written::new(&pool, size, Tag::default(), seed);
        let blocks = [block(Bytes::mib(9), 1), block(Bytes::kib(40), 2)];
        pool.sleep(Scope::Whole).unwrap();
        World { real, faults, pool, blocks }
    }

    /// Changes this byte of the large block after each of the first so many copies to it.
    fn spoil(&self, at: usize, times: usize) {
        let (block, mut left) = (self.blocks[0].address, times);
        self.faults.meddle(move |now| {
            let is_here = now.is_of(block.plus(Bytes(at as u64)));
            if left > 0 && is_here && matches!(now, Moment::CopiedIn(..)) {
                left -= 1;
                put(block, at, get(block, at) ^ 0x20);
            }
        });
    }

    fn assert_is_whole(&self) {
        self.blocks.iter().for_each(Written::assert_is_whole);
        check(&self.pool);
    }
}

/// Backups of either kind, kept and not; a wake in one chunk and in many.
fn policies() -> [Policy; 4] {
    let policy = |direct, keep| Policy::default().direct_backups(direct).keep_backups(keep);
    [
        policy(Bytes::ZERO, true),
        policy(Bytes::ZERO, false),
        policy(Bytes(u64::MAX), true),
        policy(Bytes::mib(4), false).numbers(|numbers| numbers.wake_chunk_most = PAGE),
    ]
}

/// In the first page, at the end of one, and in the last.
const PLACES: [usize; 3] = [0, (6 << 20) - 1, (8 << 20) + 77];

#[test]
fn a_copy_that_arrives_wrong_is_made_again() {
    for policy in policies() {
        for at in PLACES {
            let world = World::new(policy);
            world.spoil(at, 1);
            let woke = world.pool.wake(Scope::Whole).unwrap();
            world.faults.leave_alone();
            assert_eq!(woke.copied_again, 1, "byte {at}, {policy:?}");
            world.assert_is_whole();
        }
    }
}

#[test]
fn a_copy_that_never_arrives_right_wakes_nothing_and_names_its_page() {
    for policy in policies() {
        for at in PLACES {
            let world = World::new(policy);
            world.spoil(at, usize::MAX);
            for _ in 0..2 {
                let refused = world.pool.wake(Scope::Whole).unwrap_err();
                let Error::Corrupt { block, page, others, .. } = &refused else {
                    panic!("{refused}")
                };
                let wrong = world.blocks[0].address;
                let page_of = wrong.plus(Bytes((at / PAGE.as_usize()) as u64 * PAGE.0));
                assert_eq!((*block, *page, others.len()), (wrong, page_of, 0), "{policy:?}");
                assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Asleep);
                let taken = (world.pool.counts().physical, in_use(&world.real));
                assert_eq!(taken, Default::default(), "it was taken back");
                world.pool.check();
            }
            world.faults.leave_alone();
            world.pool.wake(Scope::Whole).unwrap();
            world.assert_is_whole();
        }
    }
}
