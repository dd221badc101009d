//! A pool that sleeps and wakes again and again, with a captured graph that works on its blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use lowtide_device::{Address, Bytes, Device, Stream};
use lowtide_pool::{
    AheadNext, Error, Limit, Phase, Policy, Pool, Scope, SleepPolicy, StreamFence, StreamId, Tag,
};
use lowtide_testing::double::{Double, DoubleGuard};
use lowtide_testing::noise::{close, first_other, noise};
use lowtide_testing::raw::{Raw, first};
use lowtide_testing::suite::{Case, Target};

use crate::hands::Hands;

/// What a graph's kernel does: `out[i] = in[i] + add`, for words of 64 bits.
const ADD: &std::ffi::CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_to_each(.param .u64 in, .param .u64 out, .param .u64 count, .param .u64 add)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %d<11>;
    ld.param.u64 %d1, [in];
    ld.param.u64 %d2, [out];
    ld.param.u64 %d3, [count];
    ld.param.u64 %d4, [add];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d5, %r4;
    setp.ge.u64 %p1, %d5, %d3;
    @%p1 bra DONE;
    shl.b64 %d6, %d5, 3;
    add.s64 %d7, %d1, %d6;
    add.s64 %d8, %d2, %d6;
    ld.global.u64 %d9, [%d7];
    add.s64 %d10, %d9, %d4;
    st.global.u64 [%d8], %d10;
DONE:
    ret;
}
";
const ADDED: u64 = 3;
const WORDS: u64 = 1 << 17;
const STAMP: u8 = 0x5c;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("contents_and_a_captured_graph_are_right_after_many_turns", |target| {
            many_turns(target, Policy::default());
        }),
        Case::new("contents_and_a_captured_graph_are_right_after_many_packed_turns", |target| {
            many_turns(target, Policy::default().packing(true));
        }),
        Case::new("a_prepared_first_sleep_frees_just_what_it_moves", a_prepared_sleep),
        Case::new("a_first_sleep_copies_only_what_was_not_saved_ahead", |target| {
            a_first_sleep_after_backups_ahead(target, Policy::default());
            a_first_sleep_after_backups_ahead(target, Policy::default().packing(true));
        }),
        Case::new("zeros_come_back_as_zeros_to_memory_that_is_not_zero", zeros_come_back),
        Case::new("a_wake_that_is_stopped_is_taken_back", a_stopped_wake_is_taken_back),
        Case::new("a_sleep_waits_for_work_in_flight", a_sleep_waits_for_work),
        Case::new("what_a_stream_still_uses_is_given_to_nobody", what_a_stream_uses_stays),
    ]
}

/// A graph that was captured once, on blocks of the pool.
struct Graph {
    raw: Raw,
    stream: u64,
    exec: u64,
}

impl Graph {
    // Fills the first half of the output; on a real GPU a kernel adds to the input there.
    fn capture(target: Target, input: Address, output: Address) -> Graph {
        let (raw, mut context, mut stream) = (Raw::load(), 0, 0);
        assert_eq!(raw.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(raw.cuCtxSetCurrent(context), 0);
        assert_eq!(raw.cuStreamCreate(&mut stream, 1), 0);
        let function = (target == Target::Cuda).then(|| {
            let (mut module, mut function) = (0, 0);
            assert_eq!(raw.cuModuleLoadData(&mut module, first(ADD)), 0);
            assert_eq!(raw.cuModuleGetFunction(&mut function, module, first(c"add_to_each")), 0);
            function
        });
        let (mut graph, mut exec) = (0, 0);
        assert_eq!(raw.cuStreamBeginCapture_v2(stream, 2), 0);
        let half = WORDS * 8;
        assert_eq!(raw.cuMemsetD8Async(output.0 + half, STAMP, half, stream), 0);
        if let Some(function) = function {
            let values = [input.0, output.0, WORDS, ADDED];
            let mut pointers =
                values.each_ref().map(|value| (&raw const *value).expose_provenance() as u64);
            let blocks = (WORDS / 256) as u32;
            let launched =
                raw.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, &mut pointers, 0);
            assert_eq!(launched, 0);
        }
        assert_eq!(raw.cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(raw.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
        Graph { raw, stream, exec }
    }

    fn launch(&self) {
        assert_eq!(self.raw.cuGraphLaunch(self.exec, self.stream), 0);
        assert_eq!(self.raw.cuStreamSynchronize(self.stream), 0);
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// What must not grow: device awake, device asleep, this process's memory.
#[derive(Debug, Clone, Copy)]
struct Measured {
    awake: Bytes,
    asleep: Bytes,
    resident_kib: u64,
}

fn many_turns(target: Target, policy: Policy) {
    let on_gpu = target == Target::Cuda;
    let (turns, size) = if on_gpu { (1000, 64 << 20) } else { (40, 6 << 20) };
    let device = Device::cuda(0).unwrap();
    let hands = Hands::new(&device);
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let seed = 11;
    println!("seed {seed}, {turns} turns");
    let mut blocks: Vec<(Address, Vec<u8>)> = (0..8)
        .map(|index| {
            // The pages of each second block pack.
            let bytes = noise(seed + index, size);
            let bytes = if index % 2 == 0 { close(bytes) } else { bytes };
            let address = pool.alloc(Bytes(size as u64), StreamId(0), weights).unwrap();
            hands.write(&pool, address, 0, &bytes);
            (address, bytes)
        })
        .collect();
    let output = pool.alloc(Bytes(WORDS * 16), StreamId(0), cache).unwrap();
    let graph = Graph::capture(target, blocks[0].0, output);
    let mut early = None;
    for turn in 0..turns {
        // One page changes, so that every sleep saves something.
        let (block, offset) = (turn % blocks.len(), (turn * 4099) % (size - 16));
        let fresh = (turn as u64).to_le_bytes();
        blocks[block].1[offset..offset + 8].copy_from_slice(&fresh);
        hands.write(&pool, blocks[block].0, offset as u64, &fresh);
        pool.sleep(Scope::Whole).unwrap();
        let asleep = device.usage().unwrap().in_use();
        pool.wake(Scope::Whole).unwrap();
        let measured = Measured {
            awake: device.usage().unwrap().in_use(),
            asleep,
            resident_kib: resident_kib(),
        };
        graph.launch();
        check_output(&pool, &hands, output, &blocks[0].1, on_gpu);
        if turn % 100 == 0 || turn + 1 == turns {
            println!("turn {turn}: {measured:?}");
            for (address, bytes) in &blocks {
                assert!(hands.read(&pool, *address, 0, bytes.len()) == *bytes, "turn {turn}");
            }
        }
        if turn == turns / 10 {
            early = Some(measured);
        }
        if turn + 1 == turns {
            let early = early.expect("there were enough turns");
            println!("after {} turns {early:?}, after {turns} {measured:?}", turns / 10);
            assert_eq!(
                (early.awake, early.asleep),
                (measured.awake, measured.asleep),
                "the device"
            );
            assert!(measured.resident_kib < early.resident_kib + (16 << 10), "this process grew");
        }
    }
    pool.check();
}

fn check_output(pool: &Pool, hands: &Hands, output: Address, input: &[u8], on_gpu: bool) {
    let half = (WORDS * 8) as usize;
    let filled = hands.read(pool, output, half as u64, half);
    assert_eq!(first_other(&filled, STAMP), None, "the graph's fill");
    if on_gpu {
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let expected: Vec<u64> =
            words(&input[..half]).iter().map(|word| word.wrapping_add(ADDED)).collect();
        assert!(words(&hands.read(pool, output, 0, half)) == expected, "the graph's kernel");
    }
}

// While a graph writes to a block, the others are backed up; blocks come and go.
fn a_first_sleep_after_backups_ahead(target: Target, policy: Policy) {
    let on_gpu = target == Target::Cuda;
    let (size, launches) = if on_gpu { (256 << 20, 2_000) } else { (6 << 20, 20) };
    let device = Device::cuda(0).unwrap();
    let hands = Hands::new(&device);
    let pool = Pool::builder(&device).policy(policy.ahead_most(Bytes::gib(64))).build().unwrap();
    let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
    let mut blocks = Vec::new();
    for index in 0..4 {
        let bytes = noise(31 + index, size);
        let bytes = if index % 2 == 0 { close(bytes) } else { bytes };
        let address = pool.alloc(Bytes(size as u64), StreamId(0), Tag::default()).unwrap();
        hands.write(&pool, address, 0, &bytes);
        blocks.push((address, bytes));
    }
    let output = pool.alloc(Bytes(WORDS * 16), StreamId(0), Tag::default()).unwrap();
    let graph = Graph::capture(target, blocks[0].0, output);
    let other = pool.clone();
    let steps = std::thread::spawn(move || {
        while other.back_up_some(Bytes::mib(16)).unwrap().next == AheadNext::More {}
    });
    let mut launched = 0;
    while launched < launches || !steps.is_finished() {
        graph.launch();
        let passing = pool.alloc(Bytes::mib(3), StreamId(0), cache).unwrap();
        pool.free(passing, StreamId(0)).unwrap();
        launched += 1;
    }
    steps.join().unwrap();
    let before = device.usage().unwrap().in_use();
    hands.write(&pool, blocks[1].0, 5, &[1, 2, 3]);
    blocks[1].1[5..8].copy_from_slice(&[1, 2, 3]);
    let slept = pool.sleep(Scope::Whole).unwrap();
    println!("{launched} launches, then {slept:?}");
    // The page that was just written, and the graph's, which may have been found resting.
    assert!(slept.copied <= Bytes::mib(4) + Bytes(WORDS * 16), "{slept:?}");
    assert!(slept.copied >= Bytes::mib(2), "{slept:?}");
    if on_gpu {
        println!("freed by the device's number: {}", before - device.usage().unwrap().in_use());
    }
    pool.wake(Scope::Whole).unwrap();
    for (address, bytes) in &blocks {
        assert!(hands.read(&pool, *address, 0, bytes.len()) == *bytes, "contents");
    }
    graph.launch();
    check_output(&pool, &hands, output, &blocks[0].1, on_gpu);
    pool.check();
}

fn a_prepared_sleep(target: Target) {
    let size = if target == Target::Cuda { 1 << 30 } else { 6 << 20 };
    let device = Device::cuda(0).unwrap();
    let (hands, pool) = (Hands::new(&device), Pool::new(&device).unwrap());
    let bytes = noise(5, size);
    let block = pool.alloc(Bytes(size as u64), StreamId(0), Tag::default()).unwrap();
    hands.write(&pool, block, 0, &bytes);
    pool.prepare_sleep().unwrap();
    pool.check();
    let (host, calls) = (pool.counts().host, device.calls());
    assert!(host >= Bytes(size as u64), "its backups are there");
    pool.prepare_sleep().unwrap();
    assert_eq!((pool.counts().host, device.calls()), (host, calls), "once is enough");
    let before = device.usage().unwrap().in_use();
    let slept = pool.sleep(Scope::Whole).unwrap();
    assert_eq!(before - device.usage().unwrap().in_use(), slept.freed);
    let limited = Policy::default().backup_most(Some(Bytes(4 << 20)));
    let limited = Pool::builder(&device).policy(limited).build().unwrap();
    limited.alloc(Bytes(6 << 20), StreamId(0), Tag::default()).unwrap();
    limited.prepare_sleep().unwrap();
    assert!(limited.counts().host <= Bytes(4 << 20), "no more than backups may take");
    drop(limited);
    // A pool that is asleep, and one that has nothing.
    pool.prepare_sleep().unwrap();
    Pool::new(&device).unwrap().prepare_sleep().unwrap();
    pool.wake(Scope::Whole).unwrap();
    assert!(hands.read(&pool, block, 0, size) == bytes);
    pool.check();
}

/// Leaves other bytes in memory that the device then gives to whoever comes next.
fn soil(pool: &Pool, size: u64) {
    pool.block(Bytes(size)).unwrap().fill(0xd1).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
}

fn zeros_come_back(target: Target) {
    const SIZE: usize = 6 << 20;
    const PAGE: usize = 2 << 20;
    let device = Device::cuda(0).unwrap();
    let hands = Hands::new(&device);
    if target == Target::Double {
        let pool = Pool::new(&device).unwrap();
        let fresh = pool.alloc(Bytes(PAGE as u64), StreamId(0), Tag::default()).unwrap();
        let found = hands.read(&pool, fresh, 0, PAGE);
        assert!(found.iter().any(|byte| *byte != 0), "new memory of the double is not zero");
    }
    for (direct_backups, keep_backups) in [(Bytes::ZERO, true), (Bytes(u64::MAX), false)] {
        let policy = Policy::default().direct_backups(direct_backups).keep_backups(keep_backups);
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        // All zeros, a page of zeros between others, and none.
        let zeros = [vec![0; SIZE], noise(1, SIZE), noise(2, SIZE)];
        let mut blocks = zeros.map(|bytes| {
            let block = pool.alloc(Bytes(SIZE as u64), StreamId(0), Tag::default()).unwrap();
            (block, bytes)
        });
        blocks[1].1[PAGE..2 * PAGE].fill(0);
        for (address, bytes) in &blocks {
            hands.write(&pool, *address, 0, bytes);
        }
        for turn in 0..2 {
            let slept = pool.sleep(Scope::Whole).unwrap();
            let zero = Bytes((SIZE + PAGE) as u64);
            if turn == 0 {
                assert_eq!((slept.zero, slept.copied), (zero, Bytes(3 * SIZE as u64) - zero));
            }
            soil(&Pool::new(&device).unwrap(), 3 * SIZE as u64);
            let woke = pool.wake(Scope::Whole).unwrap();
            assert_eq!(woke.copied, Bytes(3 * SIZE as u64) - zero, "zeros are not copied");
            assert_eq!(woke.copied_again, 0, "they are right at once");
            for (address, bytes) in &blocks {
                assert!(hands.read(&pool, *address, 0, SIZE) == *bytes, "turn {turn}");
            }
        }
        pool.check();
    }
}

// At every question that a wake asks, until there are no more.
fn a_stopped_wake_is_taken_back(_: Target) {
    let device = Device::cuda(0).unwrap();
    let hands = Hands::new(&device);
    let policy = Policy::default().numbers(|numbers| numbers.wake_chunk_most = Bytes::mib(2));
    let pool = Pool::builder(&device).policy(policy).build().unwrap();
    let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
    let size = 9 << 20;
    let block = pool.alloc(Bytes(size as u64), StreamId(0), weights).unwrap();
    let bytes = noise(5, size);
    hands.write(&pool, block, 0, &bytes);
    // Streams and buffers of turns are made in the first ones.
    for _ in 0..2 {
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
    }
    pool.sleep(Scope::Whole).unwrap();
    let asleep = device.usage().unwrap().in_use();
    for most in 0.. {
        let asked = AtomicUsize::new(0);
        let limit = || asked.fetch_add(1, SeqCst) < most;
        let outcome = pool.wake_within(Scope::Whole, Limit::new(&limit));
        let Err(error) = outcome else {
            assert!(most > 6, "it asked {most} times");
            break;
        };
        assert!(matches!(error, Error::Stopped { .. }), "{error}");
        assert_eq!(pool.phase(weights).unwrap(), Phase::Asleep, "stopped after {most}");
        assert_eq!(device.usage().unwrap().in_use(), asleep, "stopped after {most}");
        pool.check();
    }
    assert!(hands.read(&pool, block, 0, size) == bytes, "it woke with other bytes");
    pool.check();
}

/// A pool with a fence, and a stream that it watches. On the double, work of a stream starts only when
/// it is waited for.
struct Fenced {
    _double: Option<DoubleGuard>,
    pool: Pool,
    hands: Hands,
    stream: Arc<Stream>,
    id: StreamId,
}

impl Fenced {
    fn new(target: Target) -> Fenced {
        let double = (target == Target::Double).then(Double::take);
        if let Some(double) = &double {
            double.configure("late_us=600000000");
        }
        let device = Device::cuda(0).unwrap();
        let (fence, stream) =
            (Arc::new(StreamFence::default()), Arc::new(device.stream().unwrap()));
        let id = fence.watch(&stream);
        let pool = Pool::builder(&device).fence(fence).build().unwrap();
        Fenced { _double: double, hands: Hands::new(&device), pool, stream, id }
    }

    /// Has the stream fill a block, and does not wait for it.
    fn fill(&self, block: Address, size: Bytes) {
        let (reservation, at) = self.pool.place_of(block).unwrap();
        self.stream.fill((&reservation, at), STAMP, size).unwrap();
    }
}

fn a_sleep_waits_for_work(target: Target) {
    let fenced = Fenced::new(target);
    let (pool, size) = (&fenced.pool, Bytes::mib(6));
    let block = pool.alloc(size, fenced.id, Tag::default()).unwrap();
    // The fence knows the stream by what was freed on it.
    pool.free(pool.alloc(Bytes(512), fenced.id, Tag::default()).unwrap(), fenced.id).unwrap();
    for _ in 0..2 {
        fenced.hands.write(pool, block, 0, &noise(1, size.as_usize()));
        fenced.fill(block, size);
        pool.sleep(Scope::Whole).unwrap();
        pool.wake(Scope::Whole).unwrap();
        let found = fenced.hands.read(pool, block, 0, size.as_usize());
        assert_eq!(first_other(&found, STAMP), None, "the fill was slept away");
    }
    pool.check();
}

fn what_a_stream_uses_stays(target: Target) {
    let fenced = Fenced::new(target);
    let (pool, size, other) = (&fenced.pool, Bytes::mib(6), StreamId(u64::MAX));
    let block = pool.alloc(size, fenced.id, Tag::default()).unwrap();
    fenced.fill(block, size);
    pool.free(block, fenced.id).unwrap();
    if target == Target::Double {
        let next = pool.alloc(size, other, Tag::default()).unwrap();
        assert_ne!(next, block, "its stream has not passed");
        pool.free(next, other).unwrap();
    }
    fenced.stream.synchronize().unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.counts().physical, Bytes::ZERO, "it has passed");
    pool.check();
}
