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
