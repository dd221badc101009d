//! One bit a node: a search that remembers where it was in as little memory as can be, so that it
//! stays in the processor's cache.

pub(crate) struct Marks(Vec<u64>);

impl Marks {
    pub(crate) fn new(len: usize) -> Marks {
        Marks(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn has(&self, at: u32) -> bool {
        self.0[at as usize / 64] >> (at % 64) & 1 == 1
    }

    pub(crate) fn clear(&mut self, at: u32) {
        self.0[at as usize / 64] &= !(1 << (at % 64));
    }

    /// Whether it was not there yet.
    pub(crate) fn set(&mut self, at: u32) -> bool {
        let (word, bit) = (&mut self.0[at as usize / 64], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
