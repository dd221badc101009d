//! A graph capture in the same context: a quiet sleep and a wake leave it alone.

use std::time::{Duration, Instant};

use lowtide_device::{Bytes, Device};
use lowtide_pool::{AheadNext, Block, Limit, Phase, Policy, Pool, Scope, SleepPolicy, Tag};
use lowtide_testing::noise::{first_other, noise};
use lowtide_testing::raw::Raw;
use lowtide_testing::suite::{Case, Target};

/// The capture modes of the driver: global, thread-local, relaxed.
const MODES: [u32; 3] = [0, 1, 2];
const STAMP: u8 = 0x5c;
const SIZE: Bytes = Bytes::mib(5);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("a_quiet_sleep_and_a_wake_leave_a_capture_whole", leave_a_capture_whole),
        Case::new("a_sleep_that_is_stopped_leaves_a_capture_whole", stopped_leaves_it_whole),
        Case::new("a_sleep_that_waits_for_the_context_is_refused_and_undone", is_refused),
    ]
}

/// A pool whose blocks sleep, and a block that a graph fills.
struct World {
    raw: Raw,
    stream: u64,
    pool: Pool,
    weights: (Block, Vec<u8>),
    output: Block,
}

impl World {
    fn new() -> World {
        let device = Device::cuda(0).unwrap();
        let (raw, mut context, mut stream) = (Raw::load(), 0, 0);
        assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(raw.cuCtxSetCurrent(context), 0);
        assert_eq!(raw.cuStreamCreate(&mut stream, 1), 0);
        let policy = Policy::default().ahead_most(Bytes::gib(1));
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let bytes = noise(3, SIZE.as_usize());
        let weights = pool.block(SIZE).unwrap();
        weights.write(Bytes::ZERO, &bytes).unwrap();
        let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
        let output = pool.block_tagged(SIZE, cache).unwrap();
        World { raw, stream, pool, weights: (weights, bytes), output }
    }

    fn begin_capture(&self, mode: u32) {
        assert_eq!(self.raw.cuStreamBeginCapture_v2(self.stream, mode), 0);
        let (at, size) = (self.output.address().0, SIZE.0);
        assert_eq!(self.raw.cuMemsetD8Async(at, STAMP, size, self.stream), 0);
    }

    // The graph does what was captured.
    fn end_capture(&self) {
        let (mut graph, mut exec) = (0, 0);
        assert_eq!(self.raw.cuStreamEndCapture(self.stream, &mut graph), 0, "it was lost");
        assert_eq!(self.raw.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
        self.output.fill(0).unwrap();
        assert_eq!(self.raw.cuGraphLaunch(exec, self.stream), 0);
        assert_eq!(self.raw.cuStreamSynchronize(self.stream), 0);
        let mut bytes = vec![0; SIZE.as_usize()];
        self.output.read(Bytes::ZERO, &mut bytes).unwrap();
        assert_eq!(first_other(&bytes, STAMP), None, "the graph's fill");
    }

    fn assert_is_whole(&self) {
        let (weights, bytes) = &self.weights;
        let mut found = vec![0; bytes.len()];
        weights.read(Bytes::ZERO, &mut found).unwrap();
        assert!(found == *bytes, "the weights changed");
        self.pool.check();
    }
}

fn leave_a_capture_whole(_: Target) {
    let world = World::new();
    for mode in MODES {
        world.begin_capture(mode);
        let until = Instant::now() + Duration::from_secs(600);
        let limit = || Instant::now() < until;
        let slept = world.pool.sleep_quiet(Scope::Whole, Limit::new(&limit)).unwrap();
        assert_eq!((slept.tags, world.pool.counts().physical), (2, Bytes::ZERO));
        world.pool.wake_within(Scope::Whole, Limit::new(&limit)).unwrap();
        // So does everything else that a pool does.
        world.weights.0.write(Bytes(1), &[mode as u8]).unwrap();
        while world.pool.back_up_some(SIZE).unwrap().next == AheadNext::More {}
        assert!(world.pool.counts().backup >= SIZE);
        world.weights.0.write(Bytes(1), &world.weights.1[1..2]).unwrap();
        drop(world.pool.block(Bytes::mib(9)).unwrap());
        world.pool.trim(Bytes::ZERO).unwrap();
        world.assert_is_whole();
        world.end_capture();
    }
}

fn stopped_leaves_it_whole(_: Target) {
    let world = World::new();
    for mode in MODES {
        world.begin_capture(mode);
        for most in [0, 2, 4] {
            let asked = std::sync::atomic::AtomicUsize::new(0);
            let limit = || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < most;
            let stopped = world.pool.sleep_quiet(Scope::Whole, Limit::new(&limit));
            assert!(matches!(stopped, Err(lowtide_pool::Error::Stopped { .. })), "{stopped:?}");
        }
        world.assert_is_whole();
        world.end_capture();
    }
}

// What the driver says of a wait for the whole context; the quiet sleep exists because of it.
fn is_refused(_: Target) {
    let world = World::new();
    for mode in MODES {
        world.begin_capture(mode);
        assert!(world.pool.sleep(Scope::Whole).is_err(), "mode {mode}");
        assert_ne!(world.raw.cuStreamEndCapture(world.stream, &mut 0), 0, "mode {mode}");
        assert_eq!(world.pool.phase(Tag::default()).unwrap(), Phase::Awake);
        world.assert_is_whole();
    }
}
