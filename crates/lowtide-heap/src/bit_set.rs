//! A set of small numbers, one bit each: a search remembers where it was in so little memory that it
//! stays in the processor's cache.

/// A set of the numbers below a limit.
pub(crate) struct BitSet(Vec<u64>);

impl BitSet {
    /// Creates an empty set for numbers below `limit`.
    pub(crate) fn new(limit: usize) -> BitSet {
        BitSet(vec![0; limit.div_ceil(64)])
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub(crate) fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Adds a number. Returns whether it is new.
    pub(crate) fn insert(&mut self, at: usize) -> bool {
        let (word, bit) = (&mut self.0[at / 64], 1 << (at % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}
