//! Real bytes: every block of the demo is filled through a stream. Blocks that must survive are read
//! back and compared byte for byte.
//!
//! A block is filled from one region in which no two words are equal, at an offset that depends on the
//! block's seed. So its expected content is known without a second copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lowtide::device::{Bytes, Device, Stream};
use lowtide::pool::{Block, Pool, Tag};
use lowtide_device::HostMemory;

use crate::text::progress::Progress;

const REGION: u64 = 4 << 20;
/// The size of the largest copy.
const PIECE: u64 = REGION / 2;
/// The distance between the starts of two pieces: an odd number of words, so that offsets repeat late.
const STRIDE: u64 = 8 * 513;
/// The distance between two seeds, in strides.
const SEED: u64 = 1021;
/// An odd number: its multiples are all different.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills blocks and compares them. For one thread at a time.
pub(super) struct Content {
    stream: Stream,
    /// The region, for copies and for comparing.
    pattern: Arc<HostMemory>,
    words: Vec<u8>,
    read_back: Arc<HostMemory>,
    /// The next seed: no two blocks get the same bytes.
    seed: AtomicU64,
    /// Counts the bytes that were filled and compared.
    pub(super) progress: Progress,
}

/// A block and the seed of its content.
pub(super) struct Filled {
    pub(super) block: Block,
    seed: u64,
}

/// The blocks of a model or of a cache.
pub(super) struct Loaded {
    pub(super) blocks: Vec<Filled>,
}

impl Loaded {
    pub(super) fn bytes(&self) -> Bytes {
        self.blocks.iter().map(|filled| filled.block.size()).sum()
    }
}

/// A part of a block: its offset in the region, its offset in the block, and its size.
struct Piece {
    from: Bytes,
    offset: Bytes,
    size: Bytes,
}

fn pieces(size: Bytes, seed: u64) -> impl Iterator<Item = Piece> {
    (0..size.0).step_by(PIECE as usize).zip(0..).map(move |(offset, index)| Piece {
        from: Bytes((seed * SEED + index) * STRIDE % PIECE),
        offset: Bytes(offset),
        size: Bytes(PIECE.min(size.0 - offset)),
    })
}

impl Content {
    pub(super) fn new(device: &Device, progress: Progress) -> anyhow::Result<Content> {
        let pattern = device.host_memory(Bytes(REGION))?;
        let mut words = Vec::with_capacity(REGION as usize);
        for number in 1..=REGION / 8 {
            words.extend_from_slice(&number.wrapping_mul(ODD).to_le_bytes());
        }
        pattern.write(Bytes::ZERO, &words)?;
        let read_back = device.host_memory(Bytes(PIECE))?;
        let (stream, seed) = (device.stream()?, AtomicU64::new(0));
        Ok(Content { stream, pattern, words, read_back, seed, progress })
    }

    /// Allocates `size` in so many blocks, and fills them.
    pub(super) fn load(
        &self,
        pool: &Pool,
        tag: Tag,
        size: Bytes,
        blocks: u64,
    ) -> anyhow::Result<Loaded> {
        let part = Bytes(size.0 / blocks);
        let load = |_| {
            let block = pool.block_tagged(part, tag)?;
            let mut filled = Filled { block, seed: 0 };
            self.fill(pool, &mut filled)?;
            Ok(filled)
        };
        Ok(Loaded { blocks: (0..blocks).map(load).collect::<anyhow::Result<_>>()? })
    }

    /// Fills a block with other bytes.
    pub(super) fn fill(&self, pool: &Pool, filled: &mut Filled) -> anyhow::Result<()> {
        filled.seed = self.seed.fetch_add(1, Relaxed);
        let (reservation, at) = pool.place_of(filled.block.address())?;
        for Piece { from, offset, size } in pieces(filled.block.size(), filled.seed) {
            self.stream.copy_in((&self.pattern, from), (&reservation, at + offset), size)?;
        }
        self.progress.add(filled.block.size());
        Ok(self.stream.synchronize()?)
    }

    /// Compares every byte of these blocks with what they were filled with.
    pub(super) fn is_right(&self, pool: &Pool, loaded: &Loaded) -> anyhow::Result<bool> {
        let mut blocks = loaded.blocks.iter().map(|filled| self.holds(pool, filled));
        blocks.try_fold(true, |is_right, holds| Ok(is_right && holds?))
    }

    /// Compares every byte of a block with what it was filled with.
    pub(super) fn holds(&self, pool: &Pool, filled: &Filled) -> anyhow::Result<bool> {
        let (reservation, at) = pool.place_of(filled.block.address())?;
        let mut found = vec![0; PIECE.min(filled.block.size().0) as usize];
        for Piece { from, offset, size } in pieces(filled.block.size(), filled.seed) {
            let to = (&self.read_back, Bytes::ZERO);
            self.stream.copy_out((&reservation, at + offset), to, size)?;
            self.stream.synchronize()?;
            let found = &mut found[..size.as_usize()];
            self.read_back.read(Bytes::ZERO, found)?;
            if self.words[from.as_usize()..][..size.as_usize()] != *found {
                return Ok(false);
            }
        }
        self.progress.add(filled.block.size());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide::device::HostOptions;

    #[test]
    fn a_byte_that_changed_is_found_and_blocks_differ() {
        let budget = Some(Bytes::mib(64));
        let device = Device::host(HostOptions { budget, ..HostOptions::default() }).unwrap();
        let pool = Pool::new(&device).unwrap();
        let content = Content::new(&device, Progress::hidden()).unwrap();
        let mut loaded = content.load(&pool, Tag::default(), Bytes::mib(30), 3).unwrap();
        assert_eq!(loaded.bytes(), Bytes::mib(30));
        assert!(content.is_right(&pool, &loaded).unwrap());

        let (reservation, at) = pool.place_of(loaded.blocks[2].block.address()).unwrap();
        let last = at + Bytes(Bytes::mib(10).0 - 1);
        content.stream.fill((&reservation, last), 0, Bytes(1)).unwrap();
        content.stream.synchronize().unwrap();
        assert!(!content.is_right(&pool, &loaded).unwrap());
        content.fill(&pool, &mut loaded.blocks[2]).unwrap();
        assert!(content.is_right(&pool, &loaded).unwrap());
        loaded.blocks[2].seed += 1;
        assert!(!content.is_right(&pool, &loaded).unwrap(), "another seed, other bytes");
    }
}
