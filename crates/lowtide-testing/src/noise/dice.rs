//! Random numbers that are the same everywhere for a seed.

/// A generator of random numbers. Its state is never zero, because zero stays zero.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Creates dice from a seed. Neighbouring seeds have nothing in common.
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.roll(2);
        }
        dice
    }

    /// Returns a number from zero to one less than `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    /// Returns true in one of `sides` cases.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// Returns an index of a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.roll(length as u64) as usize
    }

    /// Returns a copy of one item of a list.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// Puts a list in a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}
