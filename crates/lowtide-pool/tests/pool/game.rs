//! A random player against a naive model of a pool.
#![allow(unsafe_code, reason = "writes to blocks by their addresses")]

use std::collections::HashMap;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex};

use lowtide_device::{Address, Bytes, Device};
use lowtide_pool::{
    AheadNext, Error, Fence, Phase, Policy, Pool, Scope, SleepPolicy, StreamId, Tag,
};
use lowtide_testing::Dice;

use crate::hands::Hands;

/// A size as programs ask for it: mostly small, some large, a few huge.
pub(crate) fn any_size(dice: &mut Dice, most: u64) -> u64 {
    match dice.roll(10) {
        0..4 => 1 + dice.roll(64 << 10),
        4..7 => 1 + dice.roll(1 << 20),
        7..9 => 1 + dice.roll(most / 4),
        _ => 1 + dice.roll(most),
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
    /// `None` where a sleep has lost the content.
    stamp: Option<u8>,
    tag: usize,
}

/// What the game is played on.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each program plays on its own ground")]
pub(crate) enum Ground {
    /// Numbers only: nothing can be written, and only what may be lost can sleep.
    Books,
    /// Addresses that this process can write to.
    Bytes,
    /// Addresses of a device, written to through a stream.
    Device,
}

/// What the size and the address of a block of this size are multiples of.
pub(crate) fn grain(size: u64) -> u64 {
    if size <= 4096 { 128 } else { 256 }
}

pub(crate) struct Game<'a> {
    device: &'a Device,
    pub(crate) pool: Pool,
    fence: Option<Arc<ByHand>>,
    live: Vec<Live>,
    pub(crate) dice: Dice,
    ground: Ground,
    hands: Option<Hands>,
    tags: Vec<(Tag, SleepPolicy)>,
    asleep: Vec<bool>,
    pub(crate) refused: u64,
    pub(crate) slept: u64,
}

impl<'a> Game<'a> {
    pub(crate) fn new(device: &'a Device, seed: u64, fenced: bool, ground: Ground) -> Game<'a> {
        println!("seed {seed}");
        let fence = fenced.then(Arc::<ByHand>::default);
        // Nothing, a little or more of the backups is registered with the device.
        let direct_backups = Bytes::mib(seed % 3 * 6);
        let keep_backups = seed.is_multiple_of(2);
        let policy = Policy::default().keep_backups(keep_backups).direct_backups(direct_backups);
        let policy = policy.check_backups(seed % 4 < 2);
        let policy =
            policy.packing(seed % 7 < 3).numbers(|numbers| numbers.compare_each = seed % 2);
        let policy = policy.ahead_most(Bytes::mib(seed % 5 * 16));
        // All chunks are looked at together before they leave, or one after the other.
        let policy = policy.numbers(|numbers| {
            if seed % 5 < 2 {
                numbers.checked_at_once = Bytes::mib(2);
            }
        });
        let mut builder = Pool::builder(device).policy(policy);
        if let Some(fence) = &fence {
            builder = builder.fence(Arc::clone(fence) as Arc<dyn Fence>);
        }
        let pool = builder.build().unwrap();
        let mut tags = vec![(Tag::default(), SleepPolicy::Offload)];
        for (name, policy) in [
            ("weights", SleepPolicy::Offload),
            ("cache", SleepPolicy::Discard),
            ("pinned", SleepPolicy::Keep),
        ] {
            tags.push((pool.tag(name, policy).unwrap(), policy));
        }
        let (live, dice, asleep) = (Vec::new(), Dice(seed), vec![false; tags.len()]);
        let hands = (ground == Ground::Device).then(|| Hands::new(device));
        let (refused, slept) = (0, 0);
        Game { device, pool, fence, live, dice, ground, hands, tags, asleep, refused, slept }
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
            3 => self.turn(),
            4 => self.back_up(),
            roll if self.live.is_empty() || (roll < 55 && self.live.len() < most_live) => {
                self.alloc(most_size, stream);
            }
            _ => self.free(stream),
        }
    }

    // Until nothing is left, or a step has failed: then the ring is gone.
    fn back_up(&mut self) {
        if self.ground == Ground::Books {
            return;
        }
        while let Ok(report) = self.pool.back_up_some(Bytes::mib(4)) {
            if report.next != AheadNext::More {
                break;
            }
        }
    }

    // Some tags, or all of them, fall asleep or wake.
    fn turn(&mut self) {
        let mut chosen: Vec<usize> = match self.dice.roll(3) {
            0 => (0..self.tags.len()).collect(),
            _ => vec![self.dice.roll(self.tags.len() as u64) as usize],
        };
        if self.ground == Ground::Books {
            chosen.retain(|index| self.tags[*index].1 != SleepPolicy::Offload);
        }
        let tags: Vec<Tag> = chosen.iter().map(|index| self.tags[*index].0).collect();
        let sleeps = self.dice.roll(2) == 0;
        if sleeps {
            if self.pool.sleep(Scope::Tags(&tags)).is_ok() {
                self.slept += 1;
            }
        } else {
            drop(self.pool.wake(Scope::Tags(&tags)));
        }
        self.look();
    }

    // Whether it worked or not: the pool says what is asleep, and content is lost only where it may be.
    fn look(&mut self) {
        for (index, (tag, policy)) in self.tags.iter().enumerate() {
            let asleep = self.pool.phase(*tag).unwrap() == Phase::Asleep;
            assert!(!asleep || *policy != SleepPolicy::Keep);
            if asleep && *policy == SleepPolicy::Discard {
                let own = self.live.iter_mut().filter(|live| live.tag == index);
                own.for_each(|live| live.stamp = None);
            }
            self.asleep[index] = asleep;
        }
    }

    fn alloc(&mut self, most_size: u64, stream: StreamId) {
        let (size, tag) = (any_size(&mut self.dice, most_size), self.dice.roll(4) as usize);
        let address = match self.pool.alloc(Bytes(size), stream, self.tags[tag].0) {
            Ok(address) => address,
            Err(error) => {
                assert_eq!(self.asleep[tag], matches!(error, Error::Asleep { .. }), "{error}");
                self.refused += 1;
                return;
            }
        };
        assert!(!self.asleep[tag], "a block where there is no memory");
        assert_eq!(address.0 % grain(size), 0, "as aligned as what CUDA allocates, or tiny");
        let end = address.0 + size;
        let other = self
            .live
            .iter()
            .find(|other| address.0 < other.address.0 + other.size && other.address.0 < end);
        assert!(other.is_none(), "two blocks share bytes");
        let live = Live { address, size, stamp: Some(self.dice.roll(255) as u8), tag };
        self.touch(&live, |byte, stamp| *byte = stamp);
        self.live.push(live);
    }

    fn free(&mut self, stream: StreamId) {
        let index = self.dice.roll(self.live.len() as u64) as usize;
        let live = self.live.swap_remove(index);
        if !self.asleep[live.tag] {
            self.touch(&live, |byte, stamp| assert_eq!(*byte, stamp, "a block's bytes changed"));
        }
        self.pool.free(live.address, stream).unwrap();
        assert!(self.pool.free(live.address, stream).is_err(), "freed twice");
    }

    // The first byte, the last, and one in each page between.
    fn touch(&self, live: &Live, mut with: impl FnMut(&mut u8, u8)) {
        let (Ground::Bytes | Ground::Device, Some(stamp)) = (self.ground, live.stamp) else {
            return;
        };
        for offset in (0..live.size).step_by(1 << 20).chain([live.size - 1]) {
            if let Some(hands) = &self.hands {
                let mut byte = hands.read(&self.pool, live.address, offset, 1);
                with(&mut byte[0], stamp);
                hands.write(&self.pool, live.address, offset, &byte);
                continue;
            }
            let byte = with_exposed_provenance_mut::<u8>((live.address.0 + offset) as usize);
            // SAFETY: inside a live block whose pages are mapped and open: its tag is awake.
            with(unsafe { &mut *byte }, stamp);
        }
    }

    /// Every block that is awake has its bytes.
    pub(crate) fn check_bytes(&self) {
        for live in self.live.iter().filter(|live| !self.asleep[live.tag]) {
            self.touch(live, |byte, stamp| assert_eq!(*byte, stamp, "a block's bytes changed"));
        }
    }

    pub(crate) fn check(&self) {
        self.pool.check();
        let snapshot = self.pool.snapshot();
        assert_eq!(snapshot.blocks as usize, self.live.len());
        let asked = |of: &dyn Fn(&Live) -> bool| -> u64 {
            let own = self.live.iter().filter(|live| of(live));
            own.map(|live| live.size.next_multiple_of(grain(live.size))).sum()
        };
        assert_eq!(snapshot.live_bytes.0, asked(&|_| true));
        for (index, tag) in snapshot.tags.iter().enumerate() {
            assert_eq!(tag.live_bytes.0, asked(&|live| live.tag == index));
            let asleep = if self.asleep[index] { tag.live_bytes } else { Bytes::ZERO };
            assert_eq!(tag.asleep_bytes, asleep);
        }
    }

    /// What the pool says is what the device says.
    pub(crate) fn check_device(&self, base: Bytes) {
        assert_eq!(self.device.usage().unwrap().in_use(), base + self.pool.counts().physical);
    }

    pub(crate) fn finish(mut self, base: Bytes) {
        self.pool.wake(Scope::Whole).unwrap();
        self.look();
        self.check_bytes();
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
