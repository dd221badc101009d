//! A random player against a naive model of a pool.
#![allow(unsafe_code, reason = "writes to host blocks by their addresses")]

use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex};

use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{Fence, Policy, Pool, StreamId, Tag};

/// The same numbers everywhere for a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    // As programs ask: mostly small, some large, a few huge.
    pub(crate) fn size(&mut self, most: u64) -> u64 {
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
pub(crate) struct ByHand {
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

pub(crate) struct Game<'a> {
    device: &'a Device,
    pool: Pool,
    fence: Option<Arc<ByHand>>,
    live: Vec<Live>,
    pub(crate) dice: Dice,
    /// Whether addresses can be written to.
    real: bool,
    pub(crate) refused: u64,
}

impl<'a> Game<'a> {
    pub(crate) fn new(device: &'a Device, seed: u64, fenced: bool, real: bool) -> Game<'a> {
        println!("seed {seed}");
        let fence = fenced.then(Arc::<ByHand>::default);
        let given = fence.clone().map(|fence| fence as Arc<dyn Fence>);
        let pool = Pool::new(device, Policy::default(), given).unwrap();
        Game { device, pool, fence, live: Vec::new(), dice: Dice(seed), real, refused: 0 }
    }

    pub(crate) fn step(&mut self, most_live: usize, most_size: u64) {
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

    pub(crate) fn check(&self) {
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
    pub(crate) fn check_device(&self, base: Bytes) {
        assert_eq!(self.device.usage().unwrap().in_use(), base + self.pool.counts().physical);
    }

    pub(crate) fn finish(mut self, base: Bytes) {
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
