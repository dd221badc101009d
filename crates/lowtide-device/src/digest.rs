//! The digest of a page: 128 bits that tell whether 2 MiB of memory changed.
//!
//! It is computed where the page is: on the GPU by `kernels/digest.cu`, on the
//! host by this file. Both compute the same function, bit for bit.
//!
//! # The function
//!
//! A page is 131,072 vectors of 16 bytes. Lane `l` of 256 takes vectors `l`,
//! `l + 256`, … in tiles of eight. Each half of the digest has keys of its own:
//!
//! 1. *Tile*: `t = Σ wordᵢ · kᵢ` over the tile's 32 words of 32 bits, modulo 2⁶⁴,
//!    every `kᵢ` random and odd.
//! 2. *Chain*: `s = (s ^ s >> 32) · c + t`, `c` random and odd.
//! 3. *Lane*: `scatter(s + key · (2l + 1))`, added up over the lanes.
//! 4. *Seal*: `scatter(sum ^ seal)`.
//!
//! # Why it can be trusted
//!
//! Steps 2 to 4 are bijections of what enters them, and an odd key times a word
//! difference is never zero. So a change confined to one word, or to one bit of
//! it, changes *both* halves, always. For changes in several words, the tile sum
//! is a multilinear hash: whatever the difference is, the share of keys under
//! which it vanishes is at most 2⁻³² per half (reached only where nothing but top
//! bits differ), so 2⁻⁶⁴ for the digest. The keys are drawn per process, so no
//! file, model or update can be one that always collides. It is not a defence
//! against somebody who can read the keys.

use std::sync::LazyLock;

/// Bytes that one digest covers.
pub const PAGE_BYTES: usize = 2 << 20;

const LANES: usize = 256;
const TILE_VECTORS: usize = 8;
const TILE_WORDS: usize = TILE_VECTORS * 4;
const TILES: usize = PAGE_BYTES / 16 / LANES / TILE_VECTORS;

/// What 128 bits say of one page's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
#[repr(C)]
pub struct Digest(pub [u64; 2]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// The keys of the digest. Laid out as the kernel's parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Keys {
    word: [[u64; TILE_WORDS]; 2],
    chain: [u64; 2],
    lane: [u64; 2],
    seal: [u64; 2],
}

static PROCESS_KEYS: LazyLock<Keys> = LazyLock::new(|| {
    // Without entropy the digest still works; it is only guessable.
    Keys::from_seed(getrandom::u64().unwrap_or(0x6c6f_7774_6964_6521))
});

impl Keys {
    /// The keys of this process, drawn once.
    pub fn of_this_process() -> &'static Keys {
        &PROCESS_KEYS
    }

    /// Keys that follow from a seed, for tests that must be repeatable.
    pub fn from_seed(seed: u64) -> Keys {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            scatter(state)
        };
        let mut keys =
            Keys { word: [[0; TILE_WORDS]; 2], chain: [0; 2], lane: [0; 2], seal: [0; 2] };
        for half in 0..2 {
            keys.word[half].fill_with(|| draw() | 1);
            keys.chain[half] = draw() | 1;
            keys.lane[half] = draw() | 1;
            keys.seal[half] = draw();
        }
        keys
    }

    /// The digest of one page.
    ///
    /// # Panics
    /// If `page` is not [`PAGE_BYTES`] long.
    pub fn digest(&self, page: &[u8]) -> Digest {
        assert_eq!(page.len(), PAGE_BYTES, "a digest covers one whole page");
        Digest([self.half(0, page), self.half(1, page)])
    }

    // Lanes are the inner loop so that the compiler can run several at once.
    fn half(&self, half: usize, page: &[u8]) -> u64 {
        let mut sums = [0u64; LANES];
        for tile in page.chunks_exact(PAGE_BYTES / TILES) {
            let mut tile_sums = [0u64; LANES];
            for (row, keys) in tile.chunks_exact(LANES * 16).zip(self.word[half].chunks_exact(4)) {
                for (sum, vector) in tile_sums.iter_mut().zip(row.chunks_exact(16)) {
                    for (word, key) in vector.chunks_exact(4).zip(keys) {
                        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                        *sum = sum.wrapping_add(u64::from(word).wrapping_mul(*key));
                    }
                }
            }
            for (sum, tile_sum) in sums.iter_mut().zip(tile_sums) {
                *sum = (*sum ^ (*sum >> 32)).wrapping_mul(self.chain[half]).wrapping_add(tile_sum);
            }
        }
        let total = sums.iter().zip(0u64..).fold(0u64, |total, (sum, lane)| {
            let lane_key = self.lane[half].wrapping_mul(2 * lane + 1);
            total.wrapping_add(scatter(sum.wrapping_add(lane_key)))
        });
        scatter(total ^ self.seal[half])
    }
}

/// A bijection of 64 bits in which every input bit moves about half the output bits
/// (the finaliser of `MurmurHash3`).
fn scatter(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
