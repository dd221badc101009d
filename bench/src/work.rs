//! The work of the benches: sizes as programs allocate them, in an order that depends on the seed
//! alone.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use lowtide_cli::arguments::files;

/// Random numbers (SplitMix64): small, fast, and the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The sizes of blocks, and the order in which the blocks are visited.
pub(crate) struct Work {
    /// The sizes of the blocks, in the order of their allocation.
    pub(crate) sizes: Vec<u64>,
    /// Every block once, in random order.
    pub(crate) visits: Vec<u32>,
}

impl Work {
    /// Creates the work with the sizes of the trace `ragged`: batches of lengths from 64 to 8192.
    pub(crate) fn ragged(blocks: usize, divided_by: u64, seed: u64) -> Work {
        const WIDTHS: [u64; 5] = [1024, 2048, 4096, 8192, 14336];
        let mut random = Random(seed);
        let mut sizes = Vec::with_capacity(blocks);
        while sizes.len() < blocks {
            #[expect(clippy::cast_precision_loss, reason = "any number from 6 to 13")]
            let exponent = 6.0 + 7.0 * (random.below(1 << 20) as f64 / f64::from(1 << 20));
            #[expect(clippy::cast_sign_loss, reason = "a power of two is above zero")]
            let length = exponent.exp2() as u64;
            let batch = (8 + random.below(17) as usize).min(blocks - sizes.len());
            let size = |random: &mut Random| length * WIDTHS[random.below(5) as usize] / divided_by;
            sizes.extend((0..batch).map(|_| size(&mut random).max(1)));
        }
        let mut visits: Vec<u32> = (0..blocks as u32).collect();
        for last in (1..blocks).rev() {
            visits.swap(last, random.below(last as u64 + 1) as usize);
        }
        Work { sizes, visits }
    }

    /// Returns the sizes in the order of the visits.
    pub(crate) fn visited_sizes(&self) -> impl Iterator<Item = u64> {
        self.visits.iter().map(|block| self.sizes[*block as usize])
    }

    /// Returns the sum of all sizes.
    pub(crate) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Writes one line `SIZE,NEXT` per block, so that another program can do the same work.
    pub(crate) fn write(&self, to: &Path) -> anyhow::Result<()> {
        let mut text = String::new();
        for (size, visit) in self.sizes.iter().zip(&self.visits) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{size},{visit}");
        }
        files::write(to, |mut out| out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }
}
