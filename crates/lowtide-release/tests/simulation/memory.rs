//! Memory on the device, with bytes that are known.
#![allow(unsafe_code, reason = "writes to blocks by their addresses")]

use std::cell::Cell;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex, Weak};

use lowtide_device::{Address, Bytes, Chunk, Device};
use lowtide_pool::{Block, Phase, Policy, Pool, SleepPolicy, Tag};

use lowtide_testing::Dice;

/// Something that takes room on the device until it is dropped.
#[expect(dead_code, reason = "held, and let go of")]
pub(crate) enum Memory {
    /// Of the pool, with its mark that it lives.
    Block(Block, Arc<()>),
    /// Straight from the device, as a library would take it.
    Chunk(Chunk),
}

/// Where somebody keeps memory that may be taken away.
pub(crate) type Shelf = Arc<Mutex<Vec<Memory>>>;

/// What lies on a shelf that no allocator knows of.
pub(crate) fn chunk_bytes(shelf: &Shelf) -> Bytes {
    let chunk = |memory: &Memory| match memory {
        Memory::Block(..) => Bytes::ZERO,
        Memory::Chunk(chunk) => chunk.size(),
    };
    shelf.lock().unwrap().iter().map(chunk).sum()
}

/// A block's bytes, to be found again.
struct Stamp {
    address: Address,
    size: u64,
    byte: u8,
    tag: usize,
    lives: Weak<()>,
    /// Whether it was seen asleep since its bytes were last looked at.
    has_slept: Cell<bool>,
}

/// The pool and what is known of its blocks.
pub(crate) struct Blocks {
    pub(crate) pool: Pool,
    device: Device,
    tags: Vec<(Tag, SleepPolicy)>,
    stamps: Vec<Stamp>,
    /// Blocks whose bytes came through a sleep.
    pub(crate) survived: Cell<u64>,
}

impl Blocks {
    pub(crate) fn new(device: &Device, dice: &mut Dice) -> Blocks {
        let policy = Policy::default().keep_backups(dice.one_in(2));
        let pool = Pool::builder(device).policy(policy).build().unwrap();
        let mut tags = vec![(Tag::default(), SleepPolicy::Offload)];
        for (name, policy) in [
            ("weights", SleepPolicy::Offload),
            ("kv", SleepPolicy::Discard),
            ("graphs", SleepPolicy::Keep),
        ] {
            if dice.one_in(3) {
                tags.push((pool.tag(name, policy).unwrap(), policy));
            }
        }
        Blocks { pool, device: device.clone(), tags, stamps: Vec::new(), survived: Cell::new(0) }
    }

    /// Something of any size; `None` where there is no room, or the tag sleeps.
    pub(crate) fn take(&mut self, dice: &mut Dice) -> Option<Memory> {
        if dice.one_in(8) {
            return self.device.create(Bytes::mib(2)).ok().map(Memory::Chunk);
        }
        let most = dice.pick(&[
            4 << 10,
            4 << 10,
            200 << 10,
            200 << 10,
            200 << 10,
            1 << 20,
            1 << 20,
            4 << 20,
        ]);
        let (size, tag) = (1 + dice.roll(most), dice.index(self.tags.len()));
        let block = self.pool.block_tagged(Bytes(size), self.tags[tag].0).ok()?;
        let lives = Arc::new(());
        // Pages of zeros are not copied, which saves the time for more worlds.
        if dice.one_in(4) {
            let (address, byte) = (block.address(), 1 + dice.roll(255) as u8);
            let (lives, has_slept) = (Arc::downgrade(&lives), Cell::new(false));
            let stamp = Stamp { address, size, byte, tag, lives, has_slept };
            stamp.each_byte(|found| *found = byte);
            self.stamps.push(stamp);
        }
        Some(Memory::Block(block, lives))
    }

    /// What was written and may not be lost is there, wherever a tag is awake.
    pub(crate) fn check(&self) {
        self.pool.check();
        for stamp in self.stamps.iter().filter(|stamp| stamp.lives.strong_count() > 0) {
            let (tag, policy) = self.tags[stamp.tag];
            if self.pool.phase(tag).unwrap() == Phase::Asleep {
                stamp.has_slept.set(true);
            } else if policy != SleepPolicy::Discard {
                stamp.each_byte(|found| assert_eq!(*found, stamp.byte, "a byte was lost"));
                self.survived.update(|count| count + u64::from(stamp.has_slept.take()));
            }
        }
    }

    /// Whether no chunk could be given back; none is.
    pub(crate) fn is_trimmed(&self) -> bool {
        let mut is_trimmed = true;
        let refuse = || {
            is_trimmed = false;
            false
        };
        self.pool.trim_while(Bytes::ZERO, refuse).unwrap();
        is_trimmed
    }

    /// Whether everything that can sleep does.
    pub(crate) fn sleep(&self) -> bool {
        let mut can_sleep = self.tags.iter().filter(|(_, policy)| *policy != SleepPolicy::Keep);
        can_sleep.all(|(tag, _)| self.pool.phase(*tag).unwrap() == Phase::Asleep)
    }
}

impl Stamp {
    // The first byte, the last, and some between.
    fn each_byte(&self, mut with: impl FnMut(&mut u8)) {
        for offset in (0..self.size).step_by(1 << 20).chain([self.size - 1]) {
            let byte = with_exposed_provenance_mut::<u8>((self.address.0 + offset) as usize);
            // SAFETY: inside a live block of a device of this machine whose tag is awake: mapped,
            // open, and this thread's alone.
            with(unsafe { &mut *byte });
        }
    }
}
