//! The memory of a model, as `lowtide-bench sleep` uses it: weights that are kept and a cache that is
//! discarded, both full of random bytes.

use lowtide_cli::content::{Content, Filled};
use lowtide_cli::text::progress::Progress;
use lowtide_device::digest::{Digest, Keys, PAGE_BYTES};
use lowtide_device::{Bytes, PendingDigests, Stream};
use lowtide_pool::{Pool, SleepPolicy};

use crate::work::Random;

/// Rows and columns of the weights of a model with 8 billion parameters of two bytes: embeddings; for
/// each layer attention, projections and norms; and the head.
const EMBEDDING: (u64, u64) = (128_256, 4096);
const LAYERS: usize = 32;
const LAYER: [(u64, u64); 6] =
    [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (4096, 1), (4096, 1)];
const NORM: (u64, u64) = (4096, 1);
const CACHE: u64 = 20 << 30;

/// The size of the largest piece that is copied at once, and where all blocks are small.
const PIECE_MOST: u64 = 128 << 20;
const PIECE_LEAST: u64 = 4 << 20;

pub(crate) struct Model {
    pool: Pool,
    stream: Stream,
    content: Content,
    weights: Vec<Filled>,
    _cache: Vec<Filled>,
    /// The digest of every whole page of the weights, taken when they were filled.
    digests: Vec<Vec<Digest>>,
}

/// What blocks are filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Random bytes.
    Random,
    /// Values of bf16 as trained layers have them: around zero, layers of different scale, one in a thousand
    /// twenty times as large.
    Weights,
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
    pub(crate) fn load(pool: &Pool, divide: u64, kind: Kind) -> anyhow::Result<Model> {
        let (sizes, cache) = (weight_sizes(divide), Model::discarded_bytes(divide));
        let largest =
            sizes.iter().copied().fold(cache.0 / Model::DISCARDED_BLOCKS as u64, u64::max);
        let piece = largest.next_multiple_of(1 << 20).clamp(PIECE_LEAST, PIECE_MOST);
        let mut random = Random(20_261_115);
        let write = |offset, part: &mut [u8]| write(kind, &mut random, offset, part);
        let content = Content::new(pool.device(), Bytes(piece), Progress::hidden(), write)?;
        let kept = pool.tag("weights", SleepPolicy::Offload)?;
        let lost = pool.tag("cache", SleepPolicy::Discard)?;
        let weights = sizes.into_iter().map(|size| content.block(pool, kept, Bytes(size)));
        let weights = weights.collect::<Result<_, _>>()?;
        let cache = content.blocks(pool, lost, cache, Model::DISCARDED_BLOCKS as u64)?;
        let (stream, pool, digests) = (pool.device().stream()?, pool.clone(), Vec::new());
        let mut model = Model { pool, stream, content, weights, _cache: cache, digests };
        model.digests = model.take_digests()?;
        Ok(model)
    }

    pub(crate) fn kept(&self) -> Bytes {
        self.weights.iter().map(|filled| filled.block.size()).sum()
    }

    /// Changes every page of the weights.
    pub(crate) fn change(&mut self) -> anyhow::Result<()> {
        self.weights.iter_mut().try_for_each(|filled| self.content.fill(filled))?;
        self.digests = self.take_digests()?;
        Ok(())
    }

    fn take_digests(&self) -> anyhow::Result<Vec<Vec<Digest>>> {
        let page = PAGE_BYTES as u64;
        let mut pending = Vec::with_capacity(self.weights.len());
        for Filled { block, .. } in &self.weights {
            let (reservation, at) = self.pool.place_of(block.address())?;
            let (first, last) =
                (at.0.next_multiple_of(page), (at.0 + block.size().0) / page * page);
            let pages = [first..last.max(first)];
            let keys = Keys::of_this_process();
            pending.push(self.stream.digest_ranges(&reservation, &pages, keys)?);
        }
        Ok(pending.into_iter().map(PendingDigests::wait).collect::<Result<_, _>>()?)
    }

    /// Returns whether every whole page of the weights has the digest that it was filled with.
    pub(crate) fn is_right(&self) -> anyhow::Result<bool> {
        Ok(self.take_digests()? == self.digests)
    }

    /// Compares one block in [`Model::COMPARED`] byte for byte with what it was filled with.
    pub(crate) fn is_right_to_the_byte(&self) -> anyhow::Result<bool> {
        self.content.is_right(self.weights.iter().step_by(Model::COMPARED))
    }
}

// Writes a part of the region that blocks are filled from.
fn write(kind: Kind, random: &mut Random, offset: u64, part: &mut [u8]) {
    match kind {
        Kind::Random => {
            for word in part.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
        }
        Kind::Weights => {
            let layer = (offset / LAYER_BYTES % 7) as u8;
            let scale = 0.01 + 0.01 * f32::from(layer);
            for value in part.chunks_exact_mut(2) {
                value.copy_from_slice(&weight(random.next(), scale));
            }
        }
    }
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
