//! Callbacks that call the pool which called them: each has a defined answer, and nobody waits for
//! itself.

use std::sync::{Arc, Mutex, OnceLock};

use lowtide_device::Bytes;
use lowtide_pool::{Block, Error, Fence, Limit, Phase, Policy, Pool, Result, Scope, StreamId, Tag};

use crate::written::{STREAM, Written, check, host, pool_on};

/// A fence that uses its own pool whenever it is asked.
#[derive(Default)]
struct Meddles {
    pool: OnceLock<Pool>,
    block: OnceLock<Arc<Block>>,
    /// The calls that were not refused as they should be.
    wrong: Mutex<Vec<String>>,
    asked: Mutex<usize>,
}

impl Meddles {
    fn meddle(&self) {
        let Some(pool) = self.pool.get() else { return };
        *self.asked.lock().unwrap() += 1;
        let refuses = |what: &str, outcome: Result<()>| {
            if !matches!(outcome, Err(Error::InsideFence)) {
                self.wrong.lock().unwrap().push(format!("{what}: {outcome:?}"));
            }
        };
        refuses("alloc", pool.alloc(Bytes::mib(12), STREAM, Tag::default()).map(drop));
        refuses("block", pool.block(Bytes::mib(12)).map(drop));
        refuses("trim", pool.trim(Bytes::ZERO).map(drop));
        refuses("sleep", pool.sleep(Scope::Whole).map(drop));
        if let Some(block) = self.block.get() {
            refuses("fill", block.fill(1));
            refuses("read", block.read(Bytes::ZERO, &mut [0]));
        }
    }
}

impl Fence for Meddles {
    fn has_passed(&self, _stream: StreamId) -> bool {
        self.meddle();
        true
    }

    fn wait(&self, _stream: StreamId) -> lowtide_device::Result<()> {
        self.meddle();
        Ok(())
    }
}

#[test]
fn a_fence_that_uses_its_pool_is_refused_by_name() {
    let (device, fence) = (host(Bytes::mib(32)), Arc::new(Meddles::default()));
    let pool = Pool::builder(&device).fence(Arc::clone(&fence) as _).build().unwrap();
    let block = Arc::new(pool.block(Bytes::mib(4)).unwrap());
    block.fill(7).unwrap();
    assert!(fence.block.set(Arc::clone(&block)).is_ok() && fence.pool.set(pool.clone()).is_ok());
    let asked_by = |what: &str, work: &dyn Fn() -> Result<()>| {
        // Freed, so that there is a stream to ask about.
        let freed = pool.alloc(Bytes(512), StreamId(9), Tag::default()).unwrap();
        pool.free(freed, StreamId(9)).unwrap();
        let before = *fence.asked.lock().unwrap();
        work().unwrap();
        assert!(*fence.asked.lock().unwrap() > before, "{what} did not ask");
        assert_eq!(*fence.wrong.lock().unwrap(), Vec::<String>::new(), "during {what}");
    };
    asked_by("an allocation", &|| pool.block(Bytes::mib(8)).map(drop));
    asked_by("a trim", &|| pool.trim(Bytes::ZERO).map(drop));
    asked_by("a read", &|| block.read(Bytes::ZERO, &mut [0]));
    asked_by("a sleep", &|| {
        pool.sleep(Scope::Whole).map(drop).and_then(|()| pool.wake(Scope::Whole).map(drop))
    });
    let mut byte = [0];
    block.read(Bytes::mib(3), &mut byte).unwrap();
    assert_eq!(byte, [7]);
    check(&pool);
}

#[test]
fn the_callback_of_a_trim_may_sleep_wake_allocate_and_trim() {
    let device = host(Bytes::mib(32));
    let pool = pool_on(&device, Policy::default());
    let kept = Written::new(&pool, Bytes::mib(4), Tag::default(), 1);
    let (one, two) = (pool.block(Bytes::mib(8)).unwrap(), pool.block(Bytes::mib(6)).unwrap());
    drop((one, two));
    let mut asked = 0;
    pool.trim_while(Bytes::ZERO, || {
        asked += 1;
        assert!(asked < 20, "asked without end");
        pool.sleep(Scope::Whole).unwrap();
        assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
        pool.wake(Scope::Whole).unwrap();
        drop(pool.block(Bytes::mib(2)).unwrap());
        pool.sleep_quiet(Scope::Whole, Limit::NONE).unwrap();
        pool.wake(Scope::Whole).unwrap();
        pool.trim(Bytes::mib(2)).unwrap();
        true
    })
    .unwrap();
    assert!(asked > 0);
    kept.assert_is_whole();
    check(&pool);
    // One that leaves the pool asleep: what is asleep stays so.
    drop(pool.block(Bytes::mib(8)).unwrap());
    pool.trim_while(Bytes::ZERO, || pool.sleep(Scope::Whole).is_ok()).unwrap();
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
    pool.wake(Scope::Whole).unwrap();
    kept.assert_is_whole();
    check(&pool);
}
