//! The digest of a page: 128 bits that tell whether 2 MiB of memory changed.
//!
//! It is computed where the page is: on the GPU by `kernels/digest.cu` of
//! `lowtide-device`, on the host by this file. Both compute the same function, bit for bit.
//!
//! ```
//! use lowtide_device::digest::{Keys, PAGE_BYTES};
//!
//! let (keys, mut page) = (Keys::of_this_process(), vec![0; PAGE_BYTES]);
//! let before = keys.digest(&page);
//! page[123_456] ^= 1;
//! assert_ne!(keys.digest(&page), before);
//! ```
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

#![allow(unsafe_code, reason = "calls a function for processors that have certain instructions")]

use std::sync::LazyLock;

use lowtide_types::debug_as;

/// The number of bytes that one digest covers.
pub const PAGE_BYTES: usize = 2 << 20;

const LANES: usize = 256;
const VECTOR_BYTES: usize = 16;
const TILE_VECTORS: usize = 8;
const TILE_WORDS: usize = TILE_VECTORS * 4;
const TILES: usize = PAGE_BYTES / VECTOR_BYTES / LANES / TILE_VECTORS;

/// The digest of one page's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
#[repr(C)]
pub struct Digest(pub [u64; 2]);

debug_as!(Digest, |it| "{:016x}{:016x}", it.0[0], it.0[1]);

/// The keys of the digest, laid out as the kernel's parameter.
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

#[cfg(target_arch = "x86_64")]
static HAS_WIDE_PRODUCTS: LazyLock<bool> = LazyLock::new(|| {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512dq")
});

impl Keys {
    /// Returns the keys of this process, which are drawn once.
    pub fn of_this_process() -> &'static Keys {
        &PROCESS_KEYS
    }

    /// Derives keys from a seed, for tests that must be repeatable.
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

    /// Computes the digest of one page.
    ///
    /// # Panics
    /// If `page` is not [`PAGE_BYTES`] long.
    pub fn digest(&self, page: &[u8]) -> Digest {
        assert_eq!(page.len(), PAGE_BYTES, "a digest covers one whole page");
        #[cfg(target_arch = "x86_64")]
        if *HAS_WIDE_PRODUCTS {
            // SAFETY: the processor has AVX-512 with products of 64 bits.
            return unsafe { self.digest_wide(page) };
        }
        self.digest_of(page)
    }

    /// Computes the same with AVX-512, in which the compiler multiplies eight words at once.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn digest_wide(&self, page: &[u8]) -> Digest {
        self.digest_of(page)
    }

    #[expect(clippy::inline_always, reason = "so it is compiled for the caller's instructions")]
    #[inline(always)]
    fn digest_of(&self, page: &[u8]) -> Digest {
        // A tile fits the nearest cache.
        let mut sums = [[0u64; 2]; LANES];
        for tile in page.chunks_exact(PAGE_BYTES / TILES) {
            for (pair, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let tile_sums = self.tile(tile, pair * 2 * VECTOR_BYTES);
                for (sums, tile_sums) in sums.iter_mut().zip(tile_sums) {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let mixed = (*sum ^ (*sum >> 32)).wrapping_mul(self.chain[half]);
                        *sum = mixed.wrapping_add(tile_sums[half]);
                    }
                }
            }
        }
        Digest([self.seal(0, &sums), self.seal(1, &sums)])
    }

    /// Computes step 1 for two lanes, the first of which has its first vector at `start`: their vectors lie
    /// side by side, eight words in a row.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn tile(&self, tile: &[u8], start: usize) -> [[u64; 2]; 2] {
        let mut products = [[0u64; 8]; 2];
        for row in 0..TILE_VECTORS {
            let at = row * LANES * VECTOR_BYTES + start;
            let words = tile[at..at + 2 * VECTOR_BYTES].as_chunks::<4>().0;
            for (half, products) in products.iter_mut().enumerate() {
                let keys = &self.word[half][4 * row..4 * row + 4];
                for (index, product) in products.iter_mut().enumerate() {
                    let word = u64::from(u32::from_le_bytes(words[index]));
                    *product = product.wrapping_add(word.wrapping_mul(keys[index % 4]));
                }
            }
        }
        let sum = |words: &[u64]| words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        let [first, second] = products;
        [[sum(&first[..4]), sum(&second[..4])], [sum(&first[4..]), sum(&second[4..])]]
    }

    /// Computes steps 3 and 4.
    fn seal(&self, half: usize, sums: &[[u64; 2]; LANES]) -> u64 {
        let total = sums.iter().zip(0u64..).fold(0u64, |total, (sum, lane)| {
            let lane_key = self.lane[half].wrapping_mul(2 * lane + 1);
            total.wrapping_add(scatter(sum[half].wrapping_add(lane_key)))
        });
        scatter(total ^ self.seal[half])
    }
}

/// Applies a bijection of 64 bits in which every input bit moves about half the output bits (the
/// finaliser of `MurmurHash3`).
fn scatter(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 2026;

    fn page() -> Vec<u8> {
        let mut state = SEED;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            scatter(state)
        };
        (0..PAGE_BYTES / 8).flat_map(|_| next().to_le_bytes()).collect()
    }

    fn assert_both_halves_differ(keys: &Keys, before: Digest, page: &[u8], what: &str) {
        let after = keys.digest(page);
        for half in 0..2 {
            assert_ne!(before.0[half], after.0[half], "half {half} missed {what} (seed {SEED})");
        }
    }

    // A spread of places: every lane of a vector row, both ends of tiles, both ends of the page.
    fn places() -> impl Iterator<Item = usize> {
        (0..LANES * VECTOR_BYTES)
            .step_by(52)
            .chain((0..PAGE_BYTES).step_by(65_521))
            .chain([PAGE_BYTES - 1])
    }

    #[test]
    fn each_half_sees_every_single_bit() {
        let (keys, mut page) = (Keys::from_seed(SEED), page());
        let before = keys.digest(&page);
        for (index, at) in places().enumerate() {
            page[at] ^= 1 << (index % 8);
            assert_both_halves_differ(&keys, before, &page, &format!("a bit of byte {at}"));
            page[at] ^= 1 << (index % 8);
        }
        assert_eq!(keys.digest(&page), before, "unchanged again");
    }

    #[test]
    fn each_half_sees_words_that_changed_places() {
        let (keys, mut page) = (Keys::from_seed(SEED), page());
        let before = keys.digest(&page);
        let neighbours =
            [4, VECTOR_BYTES, LANES * VECTOR_BYTES, PAGE_BYTES / TILES, PAGE_BYTES / 2];
        for distance in neighbours {
            let swap = |page: &mut [u8]| {
                (0..4).for_each(|byte| page.swap(1024 + byte, 1024 + distance + byte));
            };
            swap(&mut page);
            assert_both_halves_differ(
                &keys,
                before,
                &page,
                &format!("words {distance} bytes apart"),
            );
            swap(&mut page);
        }
    }

    // Signs that flip together are what weight updates do, and top bits are where sums are weakest.
    #[test]
    fn each_half_sees_top_bits_that_flip_together() {
        let (keys, mut page) = (Keys::from_seed(SEED), page());
        let before = keys.digest(&page);
        for distance in [2, 4, 8, 16, 4096, 32_768, 1 << 20] {
            for at in [3, 3 + distance] {
                page[at] ^= 0x80;
            }
            assert_both_halves_differ(
                &keys,
                before,
                &page,
                &format!("two signs {distance} bytes apart"),
            );
            for at in [3, 3 + distance] {
                page[at] ^= 0x80;
            }
        }
    }

    #[test]
    fn other_keys_give_another_digest() {
        let page = page();
        let (one, two) = (Keys::from_seed(1).digest(&page), Keys::from_seed(2).digest(&page));
        assert_ne!(one.0[0], two.0[0]);
        assert_ne!(one.0[1], two.0[1]);
        assert_ne!(one.0[0], one.0[1], "the halves have keys of their own");
    }

    // A processor takes one of the two ways; here both are taken, if it has both.
    #[test]
    fn eight_products_at_once_are_the_same() {
        let (keys, page) = (Keys::from_seed(3), page());
        assert_eq!(keys.digest(&page), keys.digest_of(&page));
    }

    #[test]
    fn a_fixed_seed_gives_a_fixed_digest() {
        // Pinned: a change of the function must be made in `kernels/digest.cu` too.
        assert_eq!(
            format!("{:?}", Keys::from_seed(SEED).digest(&page())),
            "a03e03f09d8b4c5df97a08af88cedd33"
        );
    }
}
