//! Figures of whole turns, one after the other: with packing and without, beside the plain copy; wakes rested
//! and right after the sleep; first sleeps.
//!
//! They are printed, and nothing is asserted about time. On the double they only show that this runs.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_device::{Address, Bytes, Device, HostMemory};
use lowtide_pool::{Policy, Pool, Scope, SleepPolicy, StreamId};
use lowtide_testing::double::{Double, DoubleGuard};
use lowtide_testing::noise::noise;
use lowtide_testing::suite::{Case, Target};
use lowtide_testing::weights::PAGE_KINDS;

const PAGE: usize = 2 << 20;
/// The content that blocks are filled from, each time from another page on.
const MADE: usize = 8;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("turns_are_measured_with_packing_and_without", turns_are_measured),
        Case::new("wakes_at_once_are_measured", wakes_are_measured),
        Case::new("first_sleeps_are_measured", first_sleeps_are_measured),
    ]
}

struct World {
    pool: Pool,
    blocks: Vec<Address>,
    size: Bytes,
    sleeps: Vec<f64>,
    unchanged: Vec<f64>,
    wakes: Vec<f64>,
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl World {
    fn new(device: &Device, policy: Policy, (count, size): (usize, Bytes), lost: Bytes) -> World {
        let pool = Pool::builder(device).policy(policy).build().unwrap();
        let weights = pool.tag("weights", SleepPolicy::Offload).unwrap();
        let cache = pool.tag("cache", SleepPolicy::Discard).unwrap();
        pool.alloc(lost, StreamId(0), cache).unwrap();
        let block = |_| pool.alloc(size, StreamId(0), weights).unwrap();
        let blocks = (0..count).map(block).collect();
        let (sleeps, unchanged, wakes) = (Vec::new(), Vec::new(), Vec::new());
        World { pool, blocks, size, sleeps, unchanged, wakes }
    }

    // Every page differs from the one that was there: pages of the content move from turn to turn.
    fn fill(&self, device: &Device, content: &Arc<HostMemory>, turn: usize) {
        let stream = device.stream().unwrap();
        for (number, block) in self.blocks.iter().enumerate() {
            let (reservation, at) = self.pool.place_of(*block).unwrap();
            for page in 0..self.size.as_usize() / PAGE {
                let from = Bytes(((number + page + turn) % MADE * PAGE) as u64);
                let to = (&reservation, at + Bytes((page * PAGE) as u64));
                stream.copy_in((content, from), to, Bytes(PAGE as u64)).unwrap();
            }
        }
        stream.synchronize().unwrap();
    }

    fn turn(&mut self, rest: Duration) {
        let sleep = |pool: &Pool| _ = pool.sleep(Scope::Whole).unwrap();
        let wake = |pool: &Pool| drop(pool.wake(Scope::Whole).unwrap());
        self.sleeps.push(seconds(|| sleep(&self.pool)));
        thread::sleep(rest);
        self.wakes.push(seconds(|| wake(&self.pool)));
        self.unchanged.push(seconds(|| sleep(&self.pool)));
        thread::sleep(rest);
        self.wakes.push(seconds(|| wake(&self.pool)));
    }
}

fn turns_are_measured(target: Target) {
    let on_gpu = target == Target::Cuda;
    let double = (!on_gpu).then(Double::take);
    if let Some(double) = &double {
        double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    }
    let device = Device::cuda(0).unwrap();
    let (count, size) = if on_gpu { (120, Bytes::mib(128)) } else { (2, Bytes::mib(4)) };
    let (lost, turns) = if on_gpu { (Bytes::gib(20), 5) } else { (Bytes::mib(4), 1) };
    let rest = Duration::from_millis(if on_gpu { 300 } else { 0 });
    let content = device.host_memory(Bytes((MADE * PAGE) as u64)).unwrap();
    for kind in ["weights", "random bytes"] {
        for page in 0..MADE {
            let bytes = match kind {
                "weights" => PAGE_KINDS[1].page(page as u64),
                _ => noise(page as u64 + 1, PAGE),
            };
            content.write(Bytes((page * PAGE) as u64), &bytes).unwrap();
        }
        let policies = [false, true].map(|packing| Policy::default().packing(packing));
        let mut worlds = policies.map(|policy| World::new(&device, policy, (count, size), lost));
        for turn in 0..turns {
            for world in &mut worlds {
                world.fill(&device, &content, turn);
                world.turn(rest);
            }
        }
        let whole = size.0 * count as u64;
        for (world, name) in worlds.iter_mut().zip(["raw", "packed"]) {
            let first = world.sleeps.remove(0);
            let changed = &mut world.sleeps;
            println!(
                "\n{kind}, {name}: first sleep {first:.3} s, all changed {:.3} s, unchanged {:.3} s, wake {:.3} s; backups {} of {}",
                if changed.is_empty() { first } else { median(changed) },
                median(&mut world.unchanged),
                median(&mut world.wakes),
                world.pool.counts().backup,
                Bytes(whole),
            );
        }
        let world = &worlds[0];
        let (reservation, at) = world.pool.place_of(world.blocks[0]).unwrap();
        let (stream, piece) = (device.stream().unwrap(), Bytes::mib(4));
        let pieces = whole / piece.0;
        let copied_in = seconds(|| {
            for _ in 0..pieces {
                stream.copy_in((&content, Bytes::ZERO), (&reservation, at), piece).unwrap();
            }
            stream.synchronize().unwrap();
        });
        println!("plain copy in of as many bytes, 4 MiB at once: {copied_in:.3} s");
    }
}

/// What a world is made of: large on a GPU, and small enough for the double otherwise.
struct Sizes {
    _double: Option<DoubleGuard>,
    blocks: (usize, Bytes),
    lost: Bytes,
    turns: usize,
    rest: Duration,
}

impl Sizes {
    fn of(target: Target) -> Sizes {
        if target == Target::Cuda {
            let (blocks, lost) = ((120, Bytes::mib(128)), Bytes::gib(20));
            return Sizes {
                _double: None,
                blocks,
                lost,
                turns: 7,
                rest: Duration::from_millis(400),
            };
        }
        let double = Double::take();
        double.configure("total=512MiB,context=16MiB,reserved=0MiB");
        let (blocks, lost) = ((5, Bytes::mib(8)), Bytes::mib(4));
        Sizes { _double: Some(double), blocks, lost, turns: 1, rest: Duration::ZERO }
    }
}

fn weights(device: &Device) -> Arc<HostMemory> {
    let content = device.host_memory(Bytes((MADE * PAGE) as u64)).unwrap();
    for page in 0..MADE {
        let bytes = PAGE_KINDS[1].page(page as u64);
        content.write(Bytes((page * PAGE) as u64), &bytes).unwrap();
    }
    content
}

// A raw and a packed pool, in turn: rested and at once.
fn wakes_are_measured(target: Target) {
    let sizes = Sizes::of(target);
    let device = Device::cuda(0).unwrap();
    let content = weights(&device);
    let forms = [("raw", false), ("packed", true)];
    let mut worlds = forms.map(|(_, packing)| {
        let policy = Policy::default().packing(packing);
        let world = World::new(&device, policy, sizes.blocks, sizes.lost);
        world.fill(&device, &content, 0);
        world.pool.sleep(Scope::Whole).unwrap();
        world.pool.wake(Scope::Whole).unwrap();
        world
    });
    let mut at_once = forms.map(|_| Vec::new());
    for _ in 0..sizes.turns {
        for (world, at_once) in worlds.iter_mut().zip(&mut at_once) {
            thread::sleep(sizes.rest);
            world.pool.sleep(Scope::Whole).unwrap();
            thread::sleep(sizes.rest);
            world.wakes.push(seconds(|| drop(world.pool.wake(Scope::Whole).unwrap())));
            thread::sleep(sizes.rest);
            world.pool.sleep(Scope::Whole).unwrap();
            at_once.push(seconds(|| drop(world.pool.wake(Scope::Whole).unwrap())));
        }
    }
    println!();
    for (((name, _), world), at_once) in forms.iter().zip(&mut worlds).zip(&mut at_once) {
        let (rested, at_once) = (median(&mut world.wakes), median(at_once));
        println!(
            "{name}: rested {rested:.4} s, at once {at_once:.4} s, {:.3} of it",
            at_once / rested,
        );
    }
}

// First sleeps of new pools, once every kernel is loaded.
fn first_sleeps_are_measured(target: Target) {
    let sizes = Sizes::of(target);
    let device = Device::cuda(0).unwrap();
    let content = weights(&device);
    for kernels in ["digests", "packing"] {
        let load = || match kernels {
            "digests" => device.prepare_digests(),
            _ => device.prepare_packing(),
        };
        println!("\nloading the kernels for {kernels}: {:.4} s", seconds(|| load().unwrap()));
    }
    let policies = [("raw", false, 0), ("packed", true, 0), ("packed and checked", true, 1)];
    for round in 0..2 {
        for (name, packing, compare_each) in policies {
            let policy = Policy::default()
                .packing(packing)
                .numbers(|numbers| numbers.compare_each = compare_each);
            let world = World::new(&device, policy, sizes.blocks, sizes.lost);
            let sleep = |turn| {
                world.fill(&device, &content, turn);
                let time = seconds(|| _ = world.pool.sleep(Scope::Whole).unwrap());
                world.pool.wake(Scope::Whole).unwrap();
                time
            };
            let (first, second) = (sleep(0), sleep(1));
            println!("round {round}, {name}: first sleep {first:.3} s, all changed {second:.3} s");
        }
    }
}
