//! Panics: one in the middle of a change breaks the pool, by name; one in a caller's own code does not.
#![allow(unsafe_code, reason = "implements a device")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::{ptr, thread};

use lowtide_device::{
    Address, Backend, BackendStream, Bytes, Device, DeviceId, DeviceInfo, DeviceKind, Handle,
    Source, Usage,
};
use lowtide_pool::{Error, Limit, Pool, Result, Scope, SleepPolicy, StreamId, Tag};

use crate::pool::Says;
use crate::written::host;

const STREAM: StreamId = StreamId(0);
const TOTAL: Bytes = Bytes::mib(64);

/// A device that only counts, and panics at one of its calls.
struct Panicking {
    info: DeviceInfo,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    panics_at: AtomicU64,
    next: AtomicU64,
    in_use: AtomicU64,
}

impl Counts {
    fn call(&self) {
        let number = self.calls.fetch_add(1, SeqCst) + 1;
        assert_ne!(number, self.panics_at.load(SeqCst), "the driver panics");
    }
}

type DeviceResult<T> = lowtide_device::Result<T>;

// SAFETY: addresses are handed out once, and nothing is read or written through them.
unsafe impl Backend for Panicking {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn usage(&self) -> DeviceResult<Usage> {
        let free = TOTAL - Bytes(self.counts.in_use.load(SeqCst));
        Ok(Usage { total: TOTAL, free, reserved: Bytes::ZERO, source: Source::DryRun })
    }
    fn calls(&self) -> u64 {
        self.counts.calls.load(SeqCst)
    }
    fn reserve(&self, size: Bytes) -> DeviceResult<Address> {
        Ok(Address((1 << 40) + self.counts.next.fetch_add(size.0, SeqCst)))
    }
    unsafe fn release(&self, _at: Address, _size: Bytes) -> DeviceResult<()> {
        Ok(())
    }
    fn create(&self, size: Bytes) -> DeviceResult<Handle> {
        self.counts.call();
        self.counts.in_use.fetch_add(size.0, SeqCst);
        Ok(Handle(1))
    }
    unsafe fn destroy(&self, _chunk: Handle, size: Bytes) -> DeviceResult<()> {
        self.counts.in_use.fetch_sub(size.0, SeqCst);
        Ok(())
    }
    unsafe fn map(&self, _at: Address, _chunk: Handle, _size: Bytes) -> DeviceResult<()> {
        self.counts.call();
        Ok(())
    }
    unsafe fn open(&self, _at: Address, _size: Bytes) -> DeviceResult<()> {
        self.counts.call();
        Ok(())
    }
    unsafe fn unmap(&self, _at: Address, _size: Bytes) -> DeviceResult<()> {
        self.counts.call();
        Ok(())
    }
    unsafe fn register(&self, _at: *mut u8, _size: Bytes) -> DeviceResult<()> {
        Ok(())
    }
    unsafe fn unregister(&self, _at: *mut u8, _size: Bytes) -> DeviceResult<()> {
        Ok(())
    }
    fn stage(&self, _size: Bytes) -> DeviceResult<*mut u8> {
        Ok(ptr::null_mut())
    }
    unsafe fn unstage(&self, _at: *mut u8, _size: Bytes) -> DeviceResult<()> {
        Ok(())
    }
    fn stream(&self) -> DeviceResult<Box<dyn BackendStream>> {
        Err(lowtide_device::Error::DryRun { operation: "stream" })
    }
    fn synchronize(&self) -> DeviceResult<()> {
        Ok(())
    }
}

fn panicking() -> (Device, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let info = DeviceInfo {
        id: DeviceId::DryRun,
        kind: DeviceKind::DryRun,
        name: "one that panics".to_owned(),
        total: TOTAL,
        page: Bytes::mib(2),
        uuid: None,
    };
    (Device::new(Panicking { info, counts: Arc::clone(&counts) }), counts)
}

fn is_broken<T>(outcome: Result<T>) -> bool {
    matches!(outcome.err(), Some(Error::Broken { .. }))
}

/// Every call that can refuse does, by name.
fn assert_refuses(pool: &Pool, tag: Tag, live: Address) {
    assert!(is_broken(pool.health()));
    assert!(is_broken(pool.alloc(Bytes(1), STREAM, tag)));
    assert!(is_broken(pool.block(Bytes(1))));
    assert!(is_broken(pool.free(live, STREAM)));
    assert!(is_broken(pool.place_of(live)));
    assert!(is_broken(pool.tag("new", SleepPolicy::Keep)));
    assert!(is_broken(pool.phase(tag)));
    assert!(is_broken(pool.sleep(Scope::Whole)));
    assert!(is_broken(pool.sleep_quiet(Scope::Whole, Limit::NONE)));
    assert!(is_broken(pool.wake(Scope::Whole)));
    assert!(is_broken(pool.start_recording()));
    assert!(is_broken(pool.stop_recording()));
    assert!(is_broken(pool.trim(Bytes::ZERO)));
    let text = pool.health().unwrap_err().to_string();
    assert!(text.starts_with("the pool is broken: a thread panicked during "), "{text}");
    assert!(!format!("{pool:?} {:?} {:?}", pool.counts(), pool.snapshot()).is_empty());
}

fn life(pool: &Pool, tag: Tag, kept: &mut Vec<Address>) -> Result<()> {
    for mib in [3, 5, 2] {
        kept.push(pool.alloc(Bytes::mib(mib), STREAM, tag)?);
    }
    pool.free(kept.remove(0), STREAM)?;
    kept.push(pool.alloc(Bytes::mib(4), STREAM, tag)?);
    pool.free(kept.remove(0), STREAM)?;
    pool.trim(Bytes::ZERO)?;
    pool.sleep(Scope::Whole)?;
    pool.wake(Scope::Whole)?;
    Ok(())
}

#[test]
fn a_panic_at_any_driver_call_breaks_the_pool_and_its_memory_goes_with_it() {
    let mut broken = 0;
    for nth in 1.. {
        let (device, counts) = panicking();
        let pool = Pool::new(&device).unwrap();
        let tag = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let first = pool.alloc(Bytes::mib(1), STREAM, tag).unwrap();
        counts.panics_at.store(counts.calls.load(SeqCst) + nth, SeqCst);
        let mut kept = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| life(&pool, tag, &mut kept)));
        counts.panics_at.store(0, SeqCst);
        if let Ok(outcome) = outcome {
            outcome.unwrap();
            pool.check();
            break;
        }
        broken += 1;
        assert_refuses(&pool, tag, first);
        // What a caller still has stays: only the rest was given back.
        assert!(device.usage().unwrap().in_use() >= Bytes::mib(2) || nth > 20, "call {nth}");
        drop(pool);
        assert_eq!(device.usage().unwrap().in_use(), Bytes::ZERO, "call {nth}");
    }
    assert!(broken > 10, "{broken} calls panicked");
}

#[test]
fn a_broken_pool_gives_back_what_no_caller_has() {
    let (device, counts) = panicking();
    let pool = Pool::new(&device).unwrap();
    let kept = pool.block(Bytes::mib(4)).unwrap();
    let freed = [8, 8].map(|mib| pool.block(Bytes::mib(mib)).unwrap());
    drop(freed);
    assert_eq!(device.usage().unwrap().in_use(), Bytes::mib(20));
    counts.panics_at.store(counts.calls.load(SeqCst) + 1, SeqCst);
    let panicked = catch_unwind(AssertUnwindSafe(|| pool.block(Bytes::mib(30))));
    assert!(panicked.is_err());
    counts.panics_at.store(0, SeqCst);
    assert!(is_broken(pool.trim(Bytes::ZERO)));
    assert_eq!(device.usage().unwrap().in_use(), Bytes::mib(4), "the caller's block stays");
    assert_eq!(pool.counts().physical, Bytes::mib(4), "as the device says");
    assert!(is_broken(kept.fill(1)));
    drop(pool);
    drop(kept);
    assert_eq!(device.usage().unwrap().in_use(), Bytes::ZERO);
}

// What the kernel says of a thread: `S` while it waits.
fn is_waiting(thread: &std::path::Path) -> bool {
    let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
    stat.unwrap().rsplit(')').next().unwrap().trim_start().starts_with('S')
}

#[test]
fn whoever_waits_is_told_that_the_pool_broke() {
    for is_bounded in [false, true] {
        let (device, counts) = panicking();
        let pool = Pool::new(&device).unwrap();
        let tag = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let _block = pool.alloc(Bytes::mib(4), STREAM, tag).unwrap();
        let (begun, was_asked) = (Barrier::new(2), AtomicBool::new(false));
        // The thread that waits for the turn. It has nothing else to wait for, once it is known.
        let (tell, waits) = std::sync::mpsc::channel();
        let waits = std::sync::Mutex::new(waits);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let limit = || {
                    if !was_asked.swap(true, SeqCst) {
                        begun.wait();
                        let waiting: std::path::PathBuf = waits.lock().unwrap().recv().unwrap();
                        while !is_waiting(&waiting) {
                            thread::yield_now();
                        }
                        counts.panics_at.store(counts.calls.load(SeqCst) + 1, SeqCst);
                    }
                    true
                };
                let sleep = || pool.sleep_quiet(Scope::Whole, Limit::new(&limit));
                catch_unwind(AssertUnwindSafe(sleep))
            });
            begun.wait();
            let goes_on = || true;
            let limit = if is_bounded { Limit::new(&goes_on) } else { Limit::NONE };
            tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            assert!(is_broken(pool.alloc_within(Bytes::mib(4), STREAM, tag, limit)));
            assert!(sleeper.join().unwrap().is_err());
        });
    }
}

#[test]
fn a_callback_that_panics_breaks_nothing() {
    let (device, is_bad) = (host(Bytes::mib(32)), Arc::new(AtomicBool::new(false)));
    let asked = Arc::clone(&is_bad);
    let fence = Says(move || {
        assert!(!asked.load(SeqCst), "the fence panics");
        true
    });
    let pool = Pool::builder(&device).fence(Arc::new(fence)).build().unwrap();
    let block = pool.block(Bytes::mib(8)).unwrap();
    block.fill(7).unwrap();
    drop(pool.block(Bytes::mib(6)).unwrap());
    let subscription = pool.on_pressure(|_| panic!("the callback panics"));
    let panics = |work: &dyn Fn() -> Result<()>| catch_unwind(AssertUnwindSafe(work)).is_err();
    is_bad.store(true, SeqCst);
    assert!(panics(&|| pool.sleep(Scope::Whole).map(drop)), "the fence, in a sleep");
    assert!(panics(&|| block.fill(9)), "the fence, before a block is written");
    pool.trim(Bytes::ZERO).unwrap();
    assert!(pool.counts().cached() >= Bytes::mib(6), "a panic is no sign that a stream has passed");
    is_bad.store(false, SeqCst);
    assert!(panics(&|| pool.block(Bytes::mib(30)).map(drop)), "pressure");
    assert!(panics(&|| pool.trim_while(Bytes::ZERO, || panic!("go on?")).map(drop)));
    let stops = pool.sleep_within(Scope::Whole, Limit::new(&|| panic!("go on?")));
    assert!(matches!(stops, Err(Error::Stopped { .. })));
    drop(subscription);
    pool.health().unwrap();
    pool.check();
    pool.sleep(Scope::Whole).unwrap();
    pool.wake(Scope::Whole).unwrap();
    let mut bytes = [0; 9];
    block.read(Bytes::mib(3), &mut bytes).unwrap();
    assert_eq!(bytes, [7; 9]);
    // A room that nobody has: a callback is asked in a wake, too.
    pool.sleep(Scope::Whole).unwrap();
    let _in_the_way = device.create(Bytes::mib(28)).unwrap();
    let subscription = pool.on_pressure(|_| panic!("the callback panics"));
    assert!(panics(&|| pool.wake(Scope::Whole).map(drop)));
    drop(subscription);
    assert!(matches!(pool.wake(Scope::Whole), Err(Error::NoRoom { .. })));
    pool.check();
}
