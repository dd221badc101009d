//! The memory of a model, as `lowtide-bench sleep` uses it: weights that are kept and a cache that is
//! discarded, both full of random bytes.
//!
//! Every block is filled from one random region, each from another offset in it. So no two pages are
//! equal, and the expected content of a block is known without a second copy of it.

use std::sync::Arc;

use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_device::{Address, Bytes, Device, HostMemory, PendingDigests, Stream};
use lowtide_pool::{Pool, SleepPolicy, StreamId};

use crate::work::Random;

/// Rows and columns of the weights of a model with 8 billion parameters of two bytes: embeddings; for
/// each layer attention, projections and norms; and the head.
const EMBEDDING: (u64, u64) = (128_256, 4096);
const LAYERS: usize = 32;
const LAYER: [(u64, u64); 6] =
    [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (4096, 1), (4096, 1)];
const NORM: (u64, u64) = (4096, 1);
const CACHE: u64 = 20 << 30;

/// The size of the largest piece. The random region has twice that, and less where all blocks are smaller.
const PIECE_MOST: u64 = 128 << 20;
/// The size of the largest piece of small blocks: more than the distance between the first and the last start.
const PIECE_LEAST: u64 = 4 << 20;
/// The distance between the starts of two pieces: no two pieces start at the same offset in a page.
const STRIDE: u64 = 4104;
const PIECES_MOST: u64 = (2 << 20) / STRIDE;

pub(crate) struct Model {
    pool: Pool,
    stream: Stream,
    random: Arc<HostMemory>,
    /// The size of the largest piece, half of the region's.
    piece_most: u64,
    read_back: Arc<HostMemory>,
    weights: Vec<Filled>,
    /// The number of changes so far: each moves every piece in the region.
    change: u64,
    /// The digest of every whole page of the weights, taken when they were filled.
    digests: Vec<Vec<Digest>>,
}

/// What blocks are filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Random bytes.
    Random,
    /// Values of bf16 as trained layers have them: around zero, layers of different scale, one in a thousand
    /// twenty times as large.
    Weights,
}

/// A part of a block: its offset in the region, its offset in the block, and its size.
struct Piece {
    from: u64,
    offset: u64,
    size: u64,
}

/// A block filled from the region.
#[derive(Clone, Copy)]
struct Filled {
    address: Address,
    size: u64,
    /// The number of the block's first piece.
    piece: u64,
}

fn weight_sizes(divide: u64) -> Vec<u64> {
    let layers = std::iter::repeat_n(LAYER, LAYERS).flatten();
    let shapes = std::iter::once(EMBEDDING).chain(layers).chain([NORM, EMBEDDING]);
    shapes.map(|(rows, columns)| (rows * columns * 2 / divide).max(512)).collect()
}

impl Model {
    pub(crate) const KEPT_BLOCKS: usize = LAYERS * LAYER.len() + 3;
    pub(crate) const DISCARDED_BLOCKS: usize = 32;
    /// The distance between two blocks that are compared byte for byte.
    pub(crate) const COMPARED: usize = 17;

    /// Returns the size of the weights.
    pub(crate) fn kept_bytes(divide: u64) -> Bytes {
        Bytes(weight_sizes(divide).iter().sum())
    }

    /// Returns the size of the cache.
    pub(crate) fn discarded_bytes(divide: u64) -> Bytes {
        Bytes(CACHE / divide)
    }

    /// Returns the size of weights and cache together.
    pub(crate) fn bytes(divide: u64) -> Bytes {
        Model::kept_bytes(divide) + Model::discarded_bytes(divide)
    }

    /// Allocates and fills everything.
    pub(crate) fn load(pool: &Pool, divide: u64, content: Content) -> anyhow::Result<Model> {
        let device = pool.device().clone();
        let weights = pool.tag("weights", SleepPolicy::Offload)?;
        let cache = pool.tag("cache", SleepPolicy::Discard)?;
        let sizes = weight_sizes(divide);
        let part = Model::discarded_bytes(divide).0 / Model::DISCARDED_BLOCKS as u64;
        let piece_most = piece_most(sizes.iter().copied().fold(part, u64::max));
        let mut pieces = 0;
        let mut alloc = |size: u64, tag| -> anyhow::Result<Filled> {
            let address = pool.alloc(Bytes(size), StreamId(0), tag)?;
            let piece = pieces;
            pieces += size.div_ceil(piece_most);
            Ok(Filled { address, size, piece })
        };
        let kept: Vec<_> =
            sizes.into_iter().map(|size| alloc(size, weights)).collect::<Result<_, _>>()?;
        let lost: Vec<_> =
            (0..Model::DISCARDED_BLOCKS).map(|_| alloc(part, cache)).collect::<Result<_, _>>()?;
        let random = random(&device, content, 2 * piece_most)?;
        let read_back = device.host_memory(Bytes(piece_most))?;
        let stream = device.stream()?;
        let (pool, weights, digests) = (pool.clone(), kept, Vec::new());
        let change = 0;
        let mut model =
            Model { pool, stream, random, piece_most, read_back, weights, change, digests };
        model.fill(&lost)?;
        model.fill(&model.weights)?;
        model.digests = model.take_digests()?;
        Ok(model)
    }

    pub(crate) fn kept(&self) -> Bytes {
        Bytes(self.weights.iter().map(|block| block.size).sum())
    }

    /// Changes every page of the weights.
    pub(crate) fn change(&mut self) -> anyhow::Result<()> {
        self.change += 1;
        self.fill(&self.weights)?;
        self.digests = self.take_digests()?;
        Ok(())
    }

    fn take_digests(&self) -> anyhow::Result<Vec<Vec<Digest>>> {
        let page = PAGE_BYTES as u64;
        let mut pending = Vec::with_capacity(self.weights.len());
        for block in &self.weights {
            let (reservation, at) = self.pool.place_of(block.address)?;
            let (first, last) = (at.0.next_multiple_of(page), (at.0 + block.size) / page * page);
            let pages = [first..last.max(first)];
            let keys = Keys::of_this_process();
            pending.push(self.stream.digest_ranges(&reservation, &pages, keys)?);
        }
        Ok(pending.into_iter().map(PendingDigests::wait).collect::<Result<_, _>>()?)
    }

    fn fill(&self, blocks: &[Filled]) -> anyhow::Result<()> {
        for block in blocks {
            let (reservation, at) = self.pool.place_of(block.address)?;
            for Piece { from, offset, size } in self.pieces(block) {
                let to = (&reservation, at + Bytes(offset));
                self.stream.copy_in((&self.random, Bytes(from)), to, Bytes(size))?;
            }
        }
        Ok(self.stream.synchronize()?)
    }

    fn pieces(&self, block: &Filled) -> impl Iterator<Item = Piece> + use<> {
        let (Filled { size, piece, .. }, change) = (*block, self.change);
        let most = self.piece_most;
        (0..size).step_by(most as usize).enumerate().map(move |(index, offset)| {
            let from = (piece + index as u64) % PIECES_MOST * STRIDE + change * 8;
            Piece { from: from % most, offset, size: most.min(size - offset) }
        })
    }

    /// Returns whether every whole page of the weights has the digest that it was filled with.
    pub(crate) fn is_right(&self) -> anyhow::Result<bool> {
        Ok(self.take_digests()? == self.digests)
    }

    /// Compares one block in [`Model::COMPARED`] byte for byte with what it was filled with.
    pub(crate) fn is_right_to_the_byte(&self) -> anyhow::Result<bool> {
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for block in self.weights.iter().step_by(Model::COMPARED) {
            let (reservation, at) = self.pool.place_of(block.address)?;
            for Piece { from, offset, size } in self.pieces(block) {
                let source = (&reservation, at + Bytes(offset));
                self.stream.copy_out(source, (&self.read_back, Bytes::ZERO), Bytes(size))?;
                self.stream.synchronize()?;
                expected.resize(size as usize, 0);
                found.resize(size as usize, 0);
                self.random.read(Bytes(from), &mut expected)?;
                self.read_back.read(Bytes::ZERO, &mut found)?;
                if expected != found {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Returns the size of the largest piece where the largest block has this size, in whole MiB.
fn piece_most(largest_block: u64) -> u64 {
    largest_block.next_multiple_of(1 << 20).clamp(PIECE_LEAST, PIECE_MOST)
}

fn random(device: &Device, content: Content, size: u64) -> anyhow::Result<Arc<HostMemory>> {
    let memory = device.host_memory(Bytes(size))?;
    let mut random_numbers = Random(20_261_115);
    let mut part = vec![0u8; 1 << 20];
    for offset in (0..size).step_by(part.len()) {
        match content {
            Content::Random => {
                for word in part.chunks_exact_mut(8) {
                    word.copy_from_slice(&random_numbers.next().to_le_bytes());
                }
            }
            Content::Weights => {
                let layer = (offset / LAYER_BYTES % 7) as u8;
                let scale = 0.01 + 0.01 * f32::from(layer);
                for value in part.chunks_exact_mut(2) {
                    value.copy_from_slice(&weight(random_numbers.next(), scale));
                }
            }
        }
        memory.write(Bytes(offset), &part)?;
    }
    Ok(memory)
}

/// The bytes of the region that have one scale.
const LAYER_BYTES: u64 = 16 << 20;

// A value of bf16. The sum of four uniform numbers is close to a normal distribution.
fn weight(random: u64, scale: f32) -> [u8; 2] {
    let part = |index: u32| f32::from((random >> (index * 13)) as u16 & 0x1fff) / 8192.0 - 0.5;
    let normal = (part(0) + part(1) + part(2) + part(3)) * 3.0_f32.sqrt();
    let outlier = if random >> 54 == 0 { 20.0 } else { 1.0 };
    let bits = (normal * scale * outlier).to_bits();
    ((bits >> 16) as u16).to_le_bytes()
}
