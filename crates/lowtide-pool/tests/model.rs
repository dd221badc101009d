//! Random operations against a naive model, with every invariant checked after each step: on books,
//! on real pages, on the driver double with injected faults.
#![allow(
    unsafe_code,
    reason = "writes to host blocks by their addresses; names the double in the environment"
)]

use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex};

use lowtide_device::{Address, Bytes, Device, HostOptions};
use lowtide_pool::{Fence, Policy, Pool, StreamId, Tag};
use lowtide_testing::double::Double;

/// The same numbers everywhere for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    // As programs ask: mostly small, some large, a few huge.
    fn size(&mut self, most: u64) -> u64 {
        match self.roll(10) {
            0..4 => 1 + self.roll(64 << 10),
            4..7 => 1 + self.roll(1 << 20),
            7..9 => 1 + self.roll(most / 4),
            _ => 1 + self.roll(most),
        }
    }
}

/// A fence that the test moves by hand.
#[derive(Default)]
struct ByHand {
    passed: Mutex<HashMap<u64, bool>>,
}

impl Fence for ByHand {
    fn has_passed(&self, stream: StreamId) -> bool {
        *self.passed.lock().unwrap().entry(stream.0).or_insert(false)
    }

    fn wait(&self, stream: StreamId) -> lowtide_device::Result<()> {
        self.passed.lock().unwrap().insert(stream.0, true);
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Live {
    address: Address,
    size: u64,
    stamp: u8,
    tag: Tag,
}

struct Game<'a> {
    device: &'a Device,
    pool: Pool,
    fence: Option<Arc<ByHand>>,
    live: Vec<Live>,
    dice: Dice,
    /// Whether addresses can be written to.
    real: bool,
    refused: u64,
}

impl<'a> Game<'a> {
    fn new(device: &'a Device, seed: u64, fenced: bool, real: bool) -> Game<'a> {
        println!("seed {seed}");
        let fence = fenced.then(Arc::<ByHand>::default);
        let given = fence.clone().map(|fence| fence as Arc<dyn Fence>);
        let pool = Pool::new(device, Policy::default(), given).unwrap();
        Game { device, pool, fence, live: Vec::new(), dice: Dice(seed), real, refused: 0 }
    }

    fn step(&mut self, most_live: usize, most_size: u64) {
        let stream = StreamId(self.dice.roll(3));
        match self.dice.roll(100) {
            0 => drop(self.pool.trim(Bytes(self.dice.roll(64 << 20)))),
            1 if self.fence.is_some() => {
                let passed = self.dice.roll(2) == 0;
                self.fence.as_ref().unwrap().passed.lock().unwrap().insert(stream.0, passed);
            }
            2 => assert!(self.pool.free(Address(12345), stream).is_err(), "nobody's address"),
            roll if self.live.is_empty() || (roll < 55 && self.live.len() < most_live) => {
                self.alloc(most_size, stream);
            }
            _ => self.free(stream),
        }
    }

    fn alloc(&mut self, most_size: u64, stream: StreamId) {
        let (size, tag) = (self.dice.size(most_size), Tag(self.dice.roll(4) as u16));
        let Ok(address) = self.pool.alloc(Bytes(size), stream, tag) else {
            self.refused += 1;
            return;
        };
        assert_eq!(address.0 % 512, 0);
        let end = address.0 + size;
        let other = self
            .live
            .iter()
            .find(|other| address.0 < other.address.0 + other.size && other.address.0 < end);
        assert!(other.is_none(), "two blocks share bytes");
        let live = Live { address, size, stamp: self.dice.roll(255) as u8, tag };
        self.touch(&live, |byte| *byte = live.stamp);
        self.live.push(live);
    }

    fn free(&mut self, stream: StreamId) {
        let index = self.dice.roll(self.live.len() as u64) as usize;
        let live = self.live.swap_remove(index);
        self.touch(&live, |byte| assert_eq!(*byte, live.stamp, "a block's bytes changed"));
        self.pool.free(live.address, stream).unwrap();
        assert!(self.pool.free(live.address, stream).is_err(), "freed twice");
    }

    // The first byte, the last, and one in each page between.
    fn touch(&self, live: &Live, mut with: impl FnMut(&mut u8)) {
        if !self.real {
            return;
        }
        for offset in (0..live.size).step_by(1 << 20).chain([live.size - 1]) {
            let byte = with_exposed_provenance_mut::<u8>((live.address.0 + offset) as usize);
            // SAFETY: inside a live block of a `host` device, whose pages are mapped and open.
            with(unsafe { &mut *byte });
        }
    }

    fn check(&self) {
        self.pool.check();
        let counts = self.pool.counts();
        assert_eq!(counts.blocks as usize, self.live.len());
        let asked: u64 = self.live.iter().map(|live| live.size.next_multiple_of(512)).sum();
        assert_eq!(counts.live.0, asked);
        for tag in 0..4 {
            let own = self.live.iter().filter(|live| live.tag == Tag(tag));
            let asked: u64 = own.map(|live| live.size.next_multiple_of(512)).sum();
            assert_eq!(self.pool.tag_counts(Tag(tag)).live.0, asked);
        }
    }

    /// What the pool says is what the device says.
    fn check_device(&self, base: Bytes) {
        assert_eq!(self.device.usage().unwrap().in_use(), base + self.pool.counts().physical);
    }

    fn finish(mut self, base: Bytes) {
        while !self.live.is_empty() {
            self.free(StreamId(0));
        }
        if let Some(fence) = &self.fence {
            (0..3).for_each(|stream| fence.wait(StreamId(stream)).unwrap());
        }
        self.pool.trim(Bytes::ZERO).unwrap();
        self.check();
        assert_eq!(self.pool.counts().physical, Bytes::ZERO, "everything came back");
        self.check_device(base);
    }
}

#[test]
fn a_million_operations_on_books() {
    for (seed, fenced) in [(1, false), (2, true), (3, false), (4, true)] {
        let (device, _) = Device::books(Bytes::mib(512));
        let mut game = Game::new(&device, seed, fenced, false);
        for _ in 0..250_000 {
            game.step(48, 64 << 20);
            game.check();
        }
        game.check_device(Bytes::ZERO);
        assert!(game.refused > 0, "the device was never full");
        game.finish(Bytes::ZERO);
    }
}

#[test]
fn real_pages_keep_their_bytes() {
    for (seed, fenced) in [(5, false), (6, true)] {
        let options = HostOptions { budget: Some(Bytes::mib(96)), small_pages: true };
        let device = Device::host(options).unwrap();
        let mut game = Game::new(&device, seed, fenced, true);
        for _ in 0..10_000 {
            game.step(40, 16 << 20);
            game.check();
            game.check_device(Bytes::ZERO);
        }
        game.finish(Bytes::ZERO);
    }
}

#[test]
fn faults_at_the_driver_leave_the_pool_whole() {
    let path = Double::path();
    for name in ["LOWTIDE_CUDA_LIBRARY", "LOWTIDE_NVML_LIBRARY"] {
        // SAFETY: the other tests of this program read no variable of these.
        unsafe { std::env::set_var(name, &path) };
    }
    let double = Double::take();
    double.configure("total=256MiB,context=16MiB,reserved=0MiB");
    let device = Device::cuda(0).unwrap();
    let base = device.usage().unwrap().in_use();
    let mut game = Game::new(&device, 7, true, false);
    for turn in 0..4_000 {
        if turn % 5 == 0 {
            let calls = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];
            let code = [2, 999][game.dice.roll(2) as usize];
            double.fail_nth(calls[game.dice.roll(5) as usize], 1 + game.dice.roll(3), code);
        }
        game.step(40, 32 << 20);
        game.check();
        double.clear_faults();
        // Gives back what was refused meanwhile, so that the numbers can be compared.
        drop(device.reserve(Bytes::mib(2)).unwrap());
        game.check_device(base);
    }
    game.finish(base);
}

#[test]
fn a_block_waits_for_its_stream() {
    let (device, _) = Device::books(Bytes::gib(1));
    let fence = Arc::new(ByHand::default());
    let pool = Pool::new(&device, Policy::default(), Some(fence.clone())).unwrap();
    let (own, other) = (StreamId(1), StreamId(2));
    let first = pool.alloc(Bytes::mib(10), own, Tag(0)).unwrap();
    pool.free(first, own).unwrap();
    let elsewhere = pool.alloc(Bytes::mib(10), other, Tag(0)).unwrap();
    assert_ne!(elsewhere, first, "stream 1 may still be using it");
    assert_eq!(
        pool.alloc(Bytes::mib(10), own, Tag(0)).unwrap(),
        first,
        "its own stream may have it"
    );
    pool.free(first, own).unwrap();
    assert_eq!(pool.trim(Bytes::ZERO).unwrap(), Bytes::ZERO, "nor can it be unmapped");
    fence.wait(own).unwrap();
    assert_eq!(pool.alloc(Bytes::mib(10), other, Tag(0)).unwrap(), first, "now it is anybody's");
    pool.check();
}

#[test]
fn threads_share_a_pool() {
    let (device, _) = Device::books(Bytes::gib(4));
    let pool = Pool::new(&device, Policy::default(), None).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let pool = &pool;
            scope.spawn(move || {
                println!("seed {seed}");
                let (mut dice, mut live) = (Dice(seed), Vec::new());
                for _ in 0..20_000 {
                    if live.len() < 20 && dice.roll(2) == 0 {
                        live.push(
                            pool.alloc(
                                Bytes(dice.size(40 << 20)),
                                StreamId(seed),
                                Tag(seed as u16),
                            )
                            .unwrap(),
                        );
                    } else if !live.is_empty() {
                        let index = dice.roll(live.len() as u64) as usize;
                        pool.free(live.swap_remove(index), StreamId(seed)).unwrap();
                    }
                    if dice.roll(500) == 0 {
                        pool.trim(Bytes::ZERO).unwrap();
                    }
                }
                for address in live {
                    pool.free(address, StreamId(seed)).unwrap();
                }
            });
        }
    });
    pool.check();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(device.usage().unwrap().in_use(), Bytes::ZERO);
}
