//! A block that somebody holds, and what is known of its content.

use std::ops::Range;

use lowtide_device::{Bytes, Stream};
use lowtide_pool::{Block, SleepPolicy};
use lowtide_testing::Dice;

use crate::content::{Content, difference};
use crate::figures;
use crate::sabotage::{self, Sabotage};
use crate::trail::{fail, note};
use crate::world::{Group, World};

/// The most that one check reads.
const READ_MOST: u64 = 3 << 20;

/// A block with the content that it should have.
pub(crate) struct Held {
    block: Block,
    pub(crate) group: Group,
    content: Content,
    /// Whether the block was written to its end since its last failed write.
    is_written: bool,
    /// For a `Discard` tag: the number of sleeps that had begun when the block was written, if none was
    /// under way. Until another one begins, the content may not be lost.
    safe_since: Option<u64>,
    /// Stray writes since the last write. Each of their bytes was written, or was lost in a sleep.
    strays: Vec<Stray>,
}

/// Writes past the pool, of two bytes in turn: they may come while the block's tag falls asleep.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stray {
    range: Range<u64>,
    bytes: [u8; 2],
}

impl Stray {
    /// Returns a write to a part of a block of this size, which is not zero.
    pub(crate) fn roll(size: Bytes, dice: &mut Dice) -> Stray {
        let start = dice.roll(size.0);
        let length = 1 + dice.roll(size.0 - start);
        Stray { range: start..start + length, bytes: [(); 2].map(|()| dice.roll(256) as u8) }
    }

    fn explains(&self, offset: u64, byte: u8) -> bool {
        self.bytes.contains(&byte) && self.range.contains(&offset)
    }
}

impl Held {
    /// Allocates a block and writes it. `None` if one of the two was refused.
    pub(crate) fn new(world: &World, group: Group, size: Bytes) -> Option<Held> {
        let (pool, tag) = world.pool_and_tag(group);
        let block = world.allowed("alloc", pool.block_tagged(size, tag))?;
        let content = Content { block: world.next_number(), version: 0 };
        let mut held =
            Held { block, group, content, is_written: false, safe_since: None, strays: Vec::new() };
        held.write(world);
        Some(held)
    }

    pub(crate) fn describe(&self) -> String {
        let Content { block, version } = self.content;
        let (size, address) = (self.block.size(), self.block.address());
        let Group { pool, tag } = self.group;
        format!(
            "block {block}, version {version}, {} bytes at {address:?}, pool {pool} tag {tag}",
            size.0
        )
    }

    /// Writes the next version.
    pub(crate) fn write(&mut self, world: &World) {
        self.content.version += 1;
        self.is_written = false;
        let sleeps = world.sleeps_if_none();
        let mut bytes = self.content.bytes(0, self.block.size().as_usize());
        if sabotage::is(Sabotage::Byte)
            && let Some(byte) = bytes.last_mut()
        {
            *byte ^= 1;
        }
        if world.allowed("write", self.block.write(Bytes::ZERO, &bytes)).is_some() {
            self.is_written = true;
            self.safe_since = sleeps;
            self.strays.clear();
        }
    }

    /// Writes past the pool, the byte whose turn it is. Returns whether the device took the write.
    pub(crate) fn write_stray(
        &mut self,
        world: &World,
        stream: &Stream,
        (stray, turn): (&Stray, usize),
    ) -> bool {
        let (pool, _) = world.pool_and_tag(self.group);
        let (reservation, start) = match pool.place_of(self.block.address()) {
            Ok(place) => place,
            Err(error) => fail(format!("a live block has no place: {error}")),
        };
        let Range { start: from, end } = stray.range;
        let place = (&reservation, start + Bytes(from));
        match stream.fill(place, stray.bytes[turn % 2], Bytes(end - from)) {
            // It is asleep, or on the way.
            Err(lowtide_device::Error::BadRange { .. }) => return false,
            filled => world.allowed("fill", filled.map_err(lowtide_pool::Error::from)),
        };
        if !self.strays.contains(stray) {
            self.strays.push(stray.clone());
        }
        true
    }

    /// Reads a part of the block, or all of it, and checks every byte. Returns whether it could be read.
    pub(crate) fn check(&mut self, world: &World, dice: &mut Dice) -> bool {
        let size = self.block.size().0;
        let start = if size > READ_MOST || dice.one_in(4) { dice.roll(size.max(1)) } else { 0 };
        let length = (size - start).min(READ_MOST);
        self.check_range(world, start, length)
    }

    /// Checks every byte of the block.
    pub(crate) fn check_all(&mut self, world: &World) -> bool {
        self.check_range(world, 0, self.block.size().0)
    }

    fn check_range(&mut self, world: &World, start: u64, length: u64) -> bool {
        let mut found = vec![0; length as usize];
        if world.allowed("read", self.block.read(Bytes(start), &mut found)).is_none() {
            return false;
        }
        if !self.is_written {
            return true;
        }
        figures::with(|figures| figures.bytes_checked += length);
        let mut expected = self.content.bytes(start, length as usize);
        if !self.strays.is_empty() {
            for (offset, (found, expected)) in (start..).zip(found.iter().zip(&mut expected)) {
                if found != expected
                    && self.strays.iter().any(|stray| stray.explains(offset, *found))
                {
                    *expected = *found;
                }
            }
        }
        if found == expected {
            return true;
        }
        let may_be_lost = self.group.policy() == SleepPolicy::Discard
            && (self.safe_since.is_none() || self.safe_since != Some(world.sleeps_begun()));
        if !may_be_lost {
            fail(format!("{}: {}", self.describe(), difference(&found, &expected, start)));
        }
        self.is_written = false;
        true
    }

    /// Gives the block back.
    pub(crate) fn free(self) {
        note(format_args!("free {}", self.describe()));
    }

    /// Returns a size: most blocks are small, some are several pages.
    pub(crate) fn roll_size(dice: &mut Dice) -> Bytes {
        let most = dice.pick(&[600, 20 << 10, 300 << 10, 3 << 20, 7 << 20]);
        Bytes(dice.roll(most + 1))
    }

    /// Returns whether the block can be neither read nor written, as in a forked child.
    pub(crate) fn is_refused(&self) -> bool {
        self.block.read(Bytes::ZERO, &mut []).is_err()
            && self.block.write(Bytes::ZERO, &[]).is_err()
    }

    pub(crate) fn size(&self) -> Bytes {
        self.block.size()
    }
}
