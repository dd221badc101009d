//! Real bytes: blocks are filled through a stream, and read back and compared byte for byte.
//!
//! Every piece of every block is filled from one region of host memory, each from another offset in it. So
//! no two pages are equal, and the expected content of a block is known without a second copy of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lowtide_device::{Bytes, Device, HostMemory, Stream};
use lowtide_pool::{Block, Pool, Tag};

use crate::text::progress::Progress;

/// The distance between the starts of two pieces in the region: an odd number of words. So many thousand
/// pieces start at different offsets in a page.
const STRIDE: u64 = 8 * 513;
/// The part of the region that is written at once.
const PART: u64 = 1 << 20;
/// An odd number: its multiples are all different.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills blocks and compares them. For one thread at a time.
pub struct Content {
    stream: Stream,
    /// Twice as large as a piece, which may begin anywhere in its first half.
    region: Arc<HostMemory>,
    read_back: Arc<HostMemory>,
    piece: Bytes,
    /// The number of pieces that were filled so far.
    filled: AtomicU64,
    /// Counts the bytes that were filled and compared.
    pub progress: Progress,
}

/// A block that was filled.
pub struct Filled {
    /// The block.
    pub block: Block,
    pool: Pool,
    /// The number of its first piece.
    first: u64,
}

/// A part of a block: its offset in the region, its offset in the block, and its size.
struct Piece {
    from: Bytes,
    offset: Bytes,
    size: Bytes,
}

/// Writes a part of the region in which no two words are equal, from `offset` on.
pub fn distinct_words(offset: u64, part: &mut [u8]) {
    for (word, number) in part.chunks_exact_mut(8).zip(offset / 8 + 1..) {
        word.copy_from_slice(&number.wrapping_mul(ODD).to_le_bytes());
    }
}

impl Content {
    /// Creates content for a device. The largest `piece` that is copied at once has whole MiB; `write` writes
    /// the region part by part, from an offset on.
    pub fn new(
        device: &Device,
        piece: Bytes,
        progress: Progress,
        mut write: impl FnMut(u64, &mut [u8]),
    ) -> anyhow::Result<Content> {
        let size = piece.0 * 2;
        let (region, read_back) = (device.host_memory(Bytes(size))?, device.host_memory(piece)?);
        let mut part = vec![0; PART as usize];
        for offset in (0..size).step_by(part.len()) {
            write(offset, &mut part);
            region.write(Bytes(offset), &part)?;
        }
        let (stream, filled) = (device.stream()?, AtomicU64::new(0));
        Ok(Content { stream, region, read_back, piece, filled, progress })
    }

    /// Allocates a block and fills it.
    pub fn block(&self, pool: &Pool, tag: Tag, size: Bytes) -> anyhow::Result<Filled> {
        let block = pool.block_tagged(size, tag)?;
        let mut filled = Filled { block, pool: pool.clone(), first: 0 };
        self.fill(&mut filled)?;
        Ok(filled)
    }

    /// Allocates `size` in so many blocks, and fills them.
    pub fn blocks(
        &self,
        pool: &Pool,
        tag: Tag,
        size: Bytes,
        count: u64,
    ) -> anyhow::Result<Vec<Filled>> {
        (0..count).map(|_| self.block(pool, tag, Bytes(size.0 / count))).collect()
    }

    /// Fills a block with other bytes.
    pub fn fill(&self, filled: &mut Filled) -> anyhow::Result<()> {
        let (address, size) = (filled.block.address(), filled.block.size());
        filled.first = self.filled.fetch_add(size.0.div_ceil(self.piece.0), Relaxed);
        let (reservation, at) = filled.pool.place_of(address)?;
        for Piece { from, offset, size } in self.pieces(filled) {
            self.stream.copy_in((&self.region, from), (&reservation, at + offset), size)?;
        }
        self.progress.add(size);
        Ok(self.stream.synchronize()?)
    }

    /// Compares every byte of these blocks with what they were filled with.
    pub fn is_right<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a Filled>,
    ) -> anyhow::Result<bool> {
        let mut blocks = blocks.into_iter().map(|filled| self.holds(filled));
        blocks.try_fold(true, |is_right, holds| Ok(is_right && holds?))
    }

    fn holds(&self, filled: &Filled) -> anyhow::Result<bool> {
        let (reservation, at) = filled.pool.place_of(filled.block.address())?;
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for Piece { from, offset, size } in self.pieces(filled) {
            let to = (&self.read_back, Bytes::ZERO);
            self.stream.copy_out((&reservation, at + offset), to, size)?;
            self.stream.synchronize()?;
            expected.resize(size.as_usize(), 0);
            found.resize(size.as_usize(), 0);
            self.region.read(from, &mut expected)?;
            self.read_back.read(Bytes::ZERO, &mut found)?;
            if expected != found {
                return Ok(false);
            }
        }
        self.progress.add(filled.block.size());
        Ok(true)
    }

    fn pieces(&self, filled: &Filled) -> impl Iterator<Item = Piece> + use<> {
        let (size, piece, first) = (filled.block.size().0, self.piece.0, filled.first);
        (0..size).step_by(piece as usize).zip(first..).map(move |(offset, number)| Piece {
            from: Bytes(number * STRIDE % piece),
            offset: Bytes(offset),
            size: Bytes(piece.min(size - offset)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_device::HostOptions;

    #[test]
    fn a_byte_that_changed_is_found_and_blocks_differ() {
        let budget = Some(Bytes::mib(64));
        let device = Device::host(HostOptions { budget, ..HostOptions::default() }).unwrap();
        let pool = Pool::new(&device).unwrap();
        let content =
            Content::new(&device, Bytes::mib(2), Progress::hidden(), distinct_words).unwrap();
        let mut blocks = content.blocks(&pool, Tag::default(), Bytes::mib(30), 3).unwrap();
        assert_eq!(blocks[2].block.size(), Bytes::mib(10));
        assert!(content.is_right(&blocks).unwrap());

        blocks[2].block.write(Bytes(Bytes::mib(10).0 - 1), &[0]).unwrap();
        assert!(!content.is_right(&blocks).unwrap());
        content.fill(&mut blocks[2]).unwrap();
        assert!(content.is_right(&blocks).unwrap());
        blocks[2].first += 1;
        assert!(!content.is_right(&blocks).unwrap(), "another piece, other bytes");
    }
}
