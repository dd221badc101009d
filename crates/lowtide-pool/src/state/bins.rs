//! Free blocks by size: a bitmap of bins, each a list through the blocks themselves.
//!
//! Bins are 3% apart, so a block of the right bin fits almost exactly; within a bin a few entries
//! are looked at and the tightest is taken. Nothing here grows with the number of blocks.

use crate::policy::GRAIN;
use crate::state::blocks::{Blocks, NONE};

const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
/// Up to 2⁵⁰ bytes.
const BINS: usize = 38 * SUBS;
const WORDS: usize = BINS / 64;
/// The number of entries of a bin that are compared.
const LOOKS: usize = 16;

pub(crate) struct Bins {
    heads: Box<[u32; BINS]>,
    filled: [u64; WORDS],
}

impl Default for Bins {
    fn default() -> Bins {
        Bins { heads: Box::new([NONE; BINS]), filled: [0; WORDS] }
    }
}

fn bin_of(size: u64) -> usize {
    let grains = size / GRAIN;
    if grains < SUBS as u64 {
        return grains as usize;
    }
    let exponent = grains.ilog2();
    let mantissa = (grains >> (exponent - SUB_BITS)) as usize & (SUBS - 1);
    ((exponent - SUB_BITS + 1) as usize * SUBS + mantissa).min(BINS - 1)
}

impl Bins {
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, block: u32) {
        let bin = bin_of(blocks.get(block).size);
        let head = self.heads[bin];
        let entry = blocks.get_mut(block);
        (entry.bin_prev, entry.bin_next) = (NONE, head);
        if head != NONE {
            blocks.get_mut(head).bin_prev = block;
        }
        self.heads[bin] = block;
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    pub(crate) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let entry = blocks.get(block);
        let (bin, prev, next) = (bin_of(entry.size), entry.bin_prev, entry.bin_next);
        if prev == NONE {
            self.heads[bin] = next;
            if next == NONE {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        } else {
            blocks.get_mut(prev).bin_next = next;
        }
        if next != NONE {
            blocks.get_mut(next).bin_prev = prev;
        }
    }

    /// Finds a block of at least this size, about the tightest there is.
    pub(crate) fn find(&self, blocks: &Blocks, size: u64) -> Option<u32> {
        let bin = bin_of(size);
        self.tightest(blocks, bin, size).or_else(|| {
            let larger = self.next_filled(bin + 1)?;
            self.tightest(blocks, larger, size)
        })
    }

    /// Lists every block of at least about this size, smallest bins first.
    pub(crate) fn at_least<'a>(
        &'a self,
        blocks: &'a Blocks,
        size: u64,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut bin = self.next_filled(bin_of(size));
        let mut at = bin.map_or(NONE, |bin| self.heads[bin]);
        std::iter::from_fn(move || {
            while at == NONE {
                bin = self.next_filled(bin? + 1);
                at = self.heads[bin?];
            }
            let found = at;
            at = blocks.get(found).bin_next;
            Some(found)
        })
    }

    fn tightest(&self, blocks: &Blocks, bin: usize, size: u64) -> Option<u32> {
        let (mut at, mut best) = (self.heads[bin], None);
        for _ in 0..LOOKS {
            if at == NONE {
                break;
            }
            let entry = blocks.get(at);
            if entry.size == size {
                return Some(at);
            }
            let key = (entry.size, entry.start);
            if entry.size > size && best.is_none_or(|(best, _)| key < best) {
                best = Some((key, at));
            }
            at = entry.bin_next;
        }
        best.map(|(_, block)| block)
    }

    fn next_filled(&self, from: usize) -> Option<usize> {
        if from >= BINS {
            return None;
        }
        let first = self.filled[from / 64] & (u64::MAX << (from % 64));
        let rest = self.filled[from / 64 + 1..].iter().copied();
        std::iter::once(first)
            .chain(rest)
            .zip(from / 64..)
            .find(|(word, _)| *word != 0)
            .map(|(word, index)| index * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_order_and_close() {
        let mut last = 0;
        for grains in 1..200_000 {
            let bin = bin_of(grains * GRAIN);
            assert!(bin == last || bin == last + 1, "{grains}");
            last = bin;
        }
        assert!(bin_of(1 << 49) < BINS);
        assert_ne!(bin_of(100 << 20), bin_of(104 << 20), "4% apart");
    }
}
