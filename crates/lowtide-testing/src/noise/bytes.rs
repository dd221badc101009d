//! Bytes of a seed, and the first in which two lists of them differ.

/// Returns bytes that differ from place to place and from seed to seed.
pub fn noise(seed: u64, size: usize) -> Vec<u8> {
    let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; size.next_multiple_of(8)];
    // No word depends on the one before, so that the processor works on several at once.
    for (word, index) in bytes.chunks_exact_mut(8).zip(1..) {
        let mixed = (seed ^ index).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x2545_f491_4f6c_dd1d);
        word.copy_from_slice(&u64::to_le_bytes(mixed ^ mixed >> 29));
    }
    bytes.truncate(size);
    bytes
}

/// Returns the same bytes as values of bf16 that lie close together, so that their pages pack.
pub fn close(mut bytes: Vec<u8>) -> Vec<u8> {
    for value in bytes.chunks_exact_mut(2) {
        value[1] = value[1] & 0x83 | 0x3c;
    }
    bytes
}

/// Returns the offset of the first byte that is another one, or `None` if all are the same.
pub fn first_difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    // Most are the same, which the comparison of slices tells faster.
    if found == expected {
        return None;
    }
    let differs = |(found, expected)| found != expected;
    Some(found.iter().zip(expected).position(differs).unwrap_or(found.len().min(expected.len())))
}

/// Returns the offset of the first byte that is not this one, or `None` if all are.
pub fn first_other(bytes: &[u8], byte: u8) -> Option<usize> {
    bytes.iter().position(|found| *found != byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Most tests of the pool rest on these: what finds nothing would let all of them pass.
    #[test]
    fn a_byte_that_differs_is_found_wherever_it_is() {
        let bytes = noise(3, 4099);
        assert_eq!(first_difference(&bytes, &bytes), None);
        assert_eq!(first_difference(&bytes[..4098], &bytes), Some(4098));
        let mut threes = vec![3; 4099];
        assert_eq!(first_other(&threes, 3), None);
        for at in [4098, 4096, 17, 8, 0] {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert_eq!(first_difference(&other, &bytes), Some(at));
            threes[at] = 2;
            assert_eq!(first_other(&threes, 3), Some(at));
        }
    }

    #[test]
    fn other_seeds_are_other_bytes() {
        let same = |one: &[u8], other: &[u8]| one.iter().zip(other).filter(|(a, b)| a == b).count();
        let [one, other] = [5, 6].map(|seed| noise(seed, 100_000));
        assert!(same(&one, &other) < 1000, "{} bytes are the same", same(&one, &other));
        assert!(same(&one, &one[1..]) < 1000, "they differ from place to place");
    }
}
