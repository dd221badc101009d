//! Random numbers that are the same everywhere for a seed.

/// A seed, and what became of it. Not zero: that stays zero.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// For seeds that are counted up: neighbours have nothing in common.
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.roll(2);
        }
        dice
    }

    /// From zero to one less than there are sides.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    /// Whether it fell on one of so many sides.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// A place in a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.roll(length as u64) as usize
    }

    /// One of a list.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// Any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}
