//! Callbacks that call the pool which called them: each has a defined answer, and nobody waits for
//! itself.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use lowtide_device::Bytes;
use lowtide_pool::{
    Block, Error, Limit, Phase, Policy, Pool, PressureAnswer, Result, Scope, SleepPolicy, StreamId,
    Tag,
};

use crate::pool::Says;
use crate::written::{STREAM, Written, check, check_whole, host, pool_on, wake_whole};

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

#[test]
fn a_fence_that_uses_its_pool_is_refused_by_name() {
    let (device, fence) = (host(Bytes::mib(32)), Arc::new(Meddles::default()));
    let asked = Arc::clone(&fence);
    let asks = Says(move || {
        asked.meddle();
        true
    });
    let pool = Pool::builder(&device).fence(Arc::new(asks)).build().unwrap();
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
    let pool = pool_on(&host(Bytes::mib(32)), Policy::default());
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
    check_whole(&pool, &[kept]);
    // One that leaves the pool asleep: what is asleep stays so.
    drop(pool.block(Bytes::mib(8)).unwrap());
    pool.trim_while(Bytes::ZERO, || pool.sleep(Scope::Whole).is_ok()).unwrap();
    assert_eq!(pool.phase(Tag::default()).unwrap(), Phase::Asleep);
    wake_whole(&pool, &[kept]);
}

/// Calls its pool in every way while a tag turns. Returns the calls with another answer than they should
/// have.
fn meddle_while_turning(pool: &Pool, turning: Tag, other: Tag, block: &Block) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut refuses = |what: &str, outcome: Result<()>| {
        if !matches!(outcome, Err(Error::InsideLimit)) {
            wrong.push(format!("{what}: {outcome:?}"));
        }
    };
    let only = Scope::Tags(&[turning]);
    refuses("sleep", pool.sleep(only).map(drop));
    refuses("sleep of all", pool.sleep_quiet(Scope::Whole, Limit::new(&|| true)).map(drop));
    refuses("wake", pool.wake(only).map(drop));
    refuses("wake of another", pool.wake(Scope::Tags(&[other])).map(drop));
    refuses("wake_losing", pool.wake_losing(Scope::Whole, Limit::NONE).map(drop));
    refuses("alloc", pool.alloc(Bytes(512), STREAM, turning).map(drop));
    let within = pool.alloc_within(Bytes::mib(1), STREAM, turning, Limit::new(&|| true));
    refuses("alloc_within", within.map(drop));
    refuses("read", block.read(Bytes::ZERO, &mut [0]));
    refuses("fill", block.fill(9));
    let mut grants = |what: &str, outcome: Result<()>| {
        if outcome.is_err() {
            wrong.push(format!("{what}: {outcome:?}"));
        }
    };
    // What need not wait is granted.
    let small = pool.alloc(Bytes(512), STREAM, other);
    grants("alloc of another", small.and_then(|address| pool.free(address, STREAM)));
    grants("trim", pool.trim(Bytes::ZERO).map(drop));
    grants("phase", pool.phase(turning).map(drop));
    wrong
}

#[test]
fn a_limit_that_would_wait_for_its_own_turn_is_refused_by_name() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let turning = pool.tag("turning", SleepPolicy::Offload).unwrap();
    let other = pool.tag("other", SleepPolicy::Keep).unwrap();
    let written = Written::new(&pool, Bytes::mib(8), turning, 3);
    let block = pool.block_tagged(Bytes::mib(1), turning).unwrap();
    let (asked, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let go_on = || {
        if pool.phase(turning).unwrap() == Phase::Turning {
            asked.fetch_add(1, SeqCst);
            let found = meddle_while_turning(&pool, turning, other, &block);
            wrong.lock().unwrap().extend(found);
        }
        true
    };
    let (limit, only) = (Limit::new(&go_on), Scope::Tags(&[turning]));
    let turns: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("sleep_within", &|| pool.sleep_within(only, limit).map(drop)),
        ("wake_within", &|| pool.wake_within(only, limit).map(drop)),
        ("sleep_quiet", &|| pool.sleep_quiet(only, limit).map(drop)),
        ("wake_losing", &|| pool.wake_losing(only, limit).map(drop)),
    ];
    for (what, turn) in turns {
        let before = asked.load(SeqCst);
        turn().unwrap();
        assert!(asked.load(SeqCst) > before, "{what} did not ask");
        assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new(), "during {what}");
    }
    check_whole(&pool, &[written]);
}

#[test]
fn the_limit_of_an_allocation_that_waits_may_not_wait_itself() {
    let pool = pool_on(&host(Bytes::mib(64)), Policy::default());
    let written = Written::new(&pool, Bytes::mib(8), Tag::default(), 3);
    let ((begun, has_begun), (go, goes)) = (mpsc::channel(), mpsc::channel::<()>());
    let goes = Mutex::new(goes);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let go_on = || {
                let _ = begun.send(());
                // Until the other side is dropped.
                let _ = goes.lock().unwrap().recv();
                true
            };
            pool.sleep_quiet(Scope::Whole, Limit::new(&go_on))
        });
        has_begun.recv().unwrap();
        let go = Mutex::new(Some(go));
        let refused = Mutex::new(None);
        let go_on = || {
            refused.lock().unwrap().get_or_insert_with(|| pool.sleep(Scope::Whole));
            drop(go.lock().unwrap().take());
            true
        };
        let outcome = pool.alloc_within(Bytes(512), STREAM, Tag::default(), Limit::new(&go_on));
        assert!(matches!(outcome, Err(Error::Asleep { .. })), "{outcome:?}");
        let refused = refused.into_inner().unwrap();
        assert!(matches!(refused, Some(Err(Error::InsideLimit))), "{refused:?}");
        sleeper.join().unwrap().unwrap();
    });
    wake_whole(&pool, &[written]);
}

#[test]
fn a_pressure_callback_that_waits_for_another_threads_allocation_comes_to_an_end() {
    for answer in [PressureAnswer::Retry, PressureAnswer::Nothing] {
        let device = host(Bytes::mib(16));
        let pool = pool_on(&device, Policy::default());
        let written = Written::new(&pool, Bytes::mib(8), Tag::default(), 3);
        let (asked, there) = (Arc::new(AtomicUsize::new(0)), pool.clone());
        let count = Arc::clone(&asked);
        let _subscription = pool.on_pressure(move |_| {
            // Without end before: that many threads are as good as that.
            assert!(count.fetch_add(1, SeqCst) < 50_000, "asked without end");
            let pool = there.clone();
            let inner = thread::spawn(move || pool.block(Bytes::mib(12)).map(drop));
            let outcome = inner.join().unwrap();
            assert!(matches!(outcome, Err(Error::OutOfMemory { .. })), "{outcome:?}");
            answer
        });
        let outcome = pool.block(Bytes::mib(12));
        assert!(matches!(outcome, Err(Error::OutOfMemory { .. })), "{outcome:?}");
        assert!(asked.load(SeqCst) > 1, "the inner one asks, too");
        // Everybody is asked again afterwards.
        let before = asked.load(SeqCst);
        assert!(pool.block(Bytes::mib(12)).is_err());
        assert!(asked.load(SeqCst) > before);
        check_whole(&pool, &[written]);
    }
}

#[test]
fn many_threads_without_room_are_each_served_in_the_end() {
    // Each question frees one of many blocks: no thread goes away empty, however many ask at once.
    let pool = pool_on(&host(Bytes::mib(16)), Policy::default());
    let cache: Vec<Block> = (0..16).map_while(|_| pool.block(Bytes::mib(1)).ok()).collect();
    assert!(pool.block(Bytes::mib(1)).is_err(), "it is full");
    let (threads, cache) = (8, Arc::new(Mutex::new(cache)));
    let frees = Arc::clone(&cache);
    let _subscription = pool.on_pressure(move |_| match frees.lock().unwrap().pop() {
        Some(block) => {
            drop(block);
            PressureAnswer::Retry
        }
        None => PressureAnswer::Nothing,
    });
    let served = thread::scope(|scope| {
        let asks: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| pool.block(Bytes::mib(1)))).collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect::<Result<Vec<_>>>().unwrap()
    });
    assert_eq!(served.len(), threads);
    drop(served);
    check(&pool);
}
