//! Bytes of a seed in which none is zero, so that memory that was lost is told from memory that was written.
//!
//! Those of odd seeds are values of bf16 that lie close together, so that their pages pack.

/// Fills memory with the bytes of a seed.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut();
    let number = words.len() as u64;
    for (place, index) in words.iter_mut().zip(0..) {
        *place = word(seed, index);
    }
    rest.copy_from_slice(&word(seed, number)[..rest.len()]);
}

/// Returns the byte at this offset.
pub fn byte(seed: u64, at: u64) -> u8 {
    word(seed, at / 8)[at as usize % 8]
}

/// Returns the offset of the first byte that is not that of the seed, and the byte, or `None` if all are right.
pub fn first_wrong(seed: u64, bytes: &[u8]) -> Option<(usize, u8)> {
    let words = bytes.as_chunks().0;
    let is_wrong = |(found, index): (&[u8; 8], u64)| *found != word(seed, index);
    let wrong = words.iter().zip(0..).position(is_wrong).unwrap_or(words.len());
    let is_wrong = |offset: &usize| bytes[*offset] != byte(seed, *offset as u64);
    let offset = (8 * wrong..bytes.len()).find(is_wrong)?;
    Some((offset, bytes[offset]))
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    let mixed = (seed << 32 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x2545_f491_4f6c_dd1d) | 0x0101_0101_0101_0101;
    let is_odd = seed % 2 == 1;
    let mixed = if is_odd { mixed & 0x83ff_83ff_83ff_83ff | 0x3c00_3c00_3c00_3c00 } else { mixed };
    mixed.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    // They once were the same, so that no test noticed when a block got the bytes of another one.
    #[test]
    fn other_seeds_are_other_bytes() {
        for (one, other) in [(2, 4), (20, 22), (1, 3), (1, 2)] {
            let same = (0..100_000).filter(|at| byte(one, *at) == byte(other, *at)).count();
            assert!(same < 20_000, "{same} bytes of {one} and {other}");
        }
    }

    #[test]
    fn the_first_wrong_byte_is_found() {
        let mut bytes = vec![0; 4099];
        fill(7, &mut bytes);
        assert_eq!(first_wrong(7, &bytes), None);
        for at in [4098, 4096, 17, 8, 7, 0] {
            bytes[at] ^= 4;
            assert_eq!(first_wrong(7, &bytes), Some((at, bytes[at])));
        }
    }
}
