//! The ground a proof stands on: a device with a pool and a releaser, new for every run, and what
//! the device itself says.

use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;

use lowtide_device::{Bytes, Chunk, Device, HostMemory, Stream};
use lowtide_pool::{Block, Pool, Scope, SleepPolicy};
use lowtide_release::{
    Climb, Climbed, Clock, Expectation, Failure, Gauge, Inventory, ManualClock, Receipt, Releaser,
    Rung, RungName,
};
use lowtide_testing::noise::first_other;
use lowtide_testing::suite::Target;

/// A real GPU's number moves by this much without anybody's doing, or by this part where much is
/// moved: a context grows when it is used.
const GROWS: u64 = 4 << 20;
const GROWS_BY: u64 = 512;

pub(crate) struct Ground {
    pub(crate) target: Target,
    pub(crate) device: Device,
    pub(crate) pool: Pool,
    pub(crate) clock: ManualClock,
    /// With the pool, on that clock; "to the floor" is to where the proof began.
    pub(crate) releaser: Releaser,
    /// What the device said before the proof took anything.
    base: Bytes,
    /// The rung that does nothing in this run.
    muted: Option<&'static str>,
    /// What a real clock has left behind.
    pub(crate) threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

// What was left behind holds memory until it ends, and a GPU's number is the whole process's: the
// next proof must not find it.
impl Drop for Ground {
    fn drop(&mut self) {
        for thread in std::mem::take(&mut *self.threads.lock().unwrap()) {
            drop(thread.join());
        }
    }
}

impl Ground {
    pub(crate) fn new(target: Target, muted: Option<&'static str>) -> Ground {
        let device = target.device().unwrap();
        let pool = Pool::new(&device).unwrap();
        // What a context takes when it is first used is not the proof's.
        drop(pool.block(Bytes::mib(2)).unwrap());
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        let (clock, base) = (ManualClock::default(), device.usage().unwrap().in_use());
        let releaser = Releaser::new(&device, Arc::new(clock.clone()));
        let threads = Arc::default();
        let ground = Ground { target, device, pool, clock, releaser, base, muted, threads };
        ground.mute(&ground.releaser);
        ground.releaser.add_pool(&ground.pool);
        ground.releaser.set_floor(ground.releaser.inventory().read().in_use().unwrap());
        ground
    }

    /// Another releaser for the same device, by another gauge and on another clock. It knows no pool.
    pub(crate) fn releaser_with(&self, gauge: Arc<dyn Gauge>, clock: Arc<dyn Clock>) -> Releaser {
        let releaser = Releaser::with_gauge(Some(gauge), clock);
        self.mute(&releaser);
        releaser
    }

    /// The same on this device and another clock, with its pool.
    pub(crate) fn releaser_on(&self, clock: Arc<dyn Clock>) -> Releaser {
        let releaser = self.releaser_with(Arc::new(self.device.clone()), clock);
        releaser.add_pool(&self.pool);
        releaser.set_floor(self.releaser.inventory().floor().unwrap());
        releaser
    }

    fn mute(&self, releaser: &Releaser) {
        if let Some(name) = self.muted {
            releaser.replace_rung(Arc::new(Nothing { name }));
        }
    }

    /// A block of so many MiB.
    pub(crate) fn block(&self, mib: u64) -> Block {
        self.pool.block(Bytes::mib(mib)).unwrap()
    }

    /// A block of so many MiB under a tag of this name.
    pub(crate) fn tagged(&self, name: &str, policy: SleepPolicy, mib: u64) -> Block {
        let tag = self.pool.tag(name, policy).unwrap();
        self.pool.block_tagged(Bytes::mib(mib), tag).unwrap()
    }

    /// Memory of the device that no allocator knows of.
    pub(crate) fn chunk(&self, mib: u64) -> Chunk {
        self.device.create(Bytes::mib(mib)).unwrap()
    }

    /// What the device says is in use beyond what was before the proof.
    pub(crate) fn in_use(&self) -> i64 {
        let now = self.device.usage().unwrap().in_use();
        now.0.cast_signed() - self.base.0.cast_signed()
    }

    /// Asserts that so many MiB are in use, by the device's own number.
    #[track_caller]
    pub(crate) fn assert_in_use(&self, mib: u64, when: &str) {
        self.assert_same(self.in_use(), mib, when);
    }

    /// Asserts that a release says it freed so many MiB. What was freed is asked of the device.
    #[track_caller]
    pub(crate) fn assert_freed(&self, receipt: &Receipt, mib: u64) {
        self.assert_same(receipt.freed_bytes.expect("the device was asked"), mib, "freed");
    }

    /// Asserts that bytes are so many MiB; on a real GPU, about.
    #[track_caller]
    pub(crate) fn assert_same(&self, bytes: i64, mib: u64, what: &str) {
        let expected = Bytes::mib(mib).0;
        let difference = bytes - expected.cast_signed();
        let grows = GROWS.max(expected / GROWS_BY);
        let may_differ = if self.target == Target::Cuda { grows } else { 0 };
        assert!(
            difference.unsigned_abs() <= may_differ,
            "{what}: {mib} MiB expected, {bytes} bytes ({difference:+})"
        );
    }
}

/// A rung that touches nothing.
struct Nothing {
    name: &'static str,
}

impl Rung for Nothing {
    fn name(&self) -> RungName {
        self.name.into()
    }

    fn expect(&self, _: &Inventory) -> Expectation {
        Expectation::Bytes(Some(Bytes::ZERO))
    }

    fn climb(&self, _: &Inventory, _: &Climb) -> Result<Climbed, Failure> {
        Ok(Climbed::default())
    }
}

/// Hands that touch a block's bytes on any device.
pub(crate) struct Hands {
    stream: Stream,
    memory: Arc<HostMemory>,
}

const PAGE: usize = 2 << 20;

impl Hands {
    pub(crate) fn new(ground: &Ground) -> Hands {
        let (stream, memory) = (ground.device.stream(), ground.device.host_memory(Bytes::mib(2)));
        Hands { stream: stream.unwrap(), memory: memory.unwrap() }
    }

    /// Writes bytes that differ from page to page and from seed to seed.
    pub(crate) fn write(&self, pool: &Pool, block: &Block, seed: u8) {
        let (reservation, at) = pool.place_of(block.address()).unwrap();
        for (page, offset) in pages(block) {
            self.memory.write(Bytes::ZERO, &vec![page ^ seed; PAGE]).unwrap();
            let to = (&reservation, at + offset);
            self.stream.copy_in((&self.memory, Bytes::ZERO), to, Bytes(PAGE as u64)).unwrap();
            self.stream.synchronize().unwrap();
        }
    }

    /// Asserts that they are still there.
    #[track_caller]
    pub(crate) fn assert_is_whole(&self, pool: &Pool, block: &Block, seed: u8) {
        let (reservation, at) = pool.place_of(block.address()).unwrap();
        let mut found = vec![0; PAGE];
        for (page, offset) in pages(block) {
            let from = (&reservation, at + offset);
            self.stream.copy_out(from, (&self.memory, Bytes::ZERO), Bytes(PAGE as u64)).unwrap();
            self.stream.synchronize().unwrap();
            self.memory.read(Bytes::ZERO, &mut found).unwrap();
            assert_eq!(first_other(&found, page ^ seed), None, "page {page} has other bytes");
        }
    }
}

// Each page's number, as a byte that is in it, and where it is.
fn pages(block: &Block) -> impl Iterator<Item = (u8, Bytes)> {
    let count = block.size().0 / PAGE as u64;
    (0..count).map(|page| ((page % 251) as u8, Bytes(page * PAGE as u64)))
}

/// So many want their panics unsaid.
static QUIET: AtomicUsize = AtomicUsize::new(0);

struct Quiet;

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.fetch_sub(1, SeqCst);
    }
}

/// Does something in which panics are expected, so nobody needs to read of them.
pub(crate) fn quietly<R>(work: impl FnOnce() -> R) -> R {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            if QUIET.load(SeqCst) == 0 {
                usual(panic);
            }
        }));
    });
    QUIET.fetch_add(1, SeqCst);
    let _quiet = Quiet;
    work()
}
