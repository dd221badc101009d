//! A copy that leaves the processor's caches alone.
//!
//! An ordinary store reads its line from memory before it writes it, and pushes other lines out of
//! the caches. For gigabytes that nobody will read soon, both are wasted: stores that go past the
//! caches halve the traffic to memory, which is what limits several threads that copy at once.
#![allow(unsafe_code, reason = "copies through raw pointers with the processor's streaming stores")]

/// Copies bytes; what was written is visible to other threads and devices when this returns.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "as many bytes on both sides");
    #[cfg(target_arch = "x86_64")]
    {
        let ahead = to.as_ptr().align_offset(LINE).min(to.len());
        let (first, to) = to.split_at_mut(ahead);
        let (first_from, from) = from.split_at(ahead);
        first.copy_from_slice(first_from);
        let lines = to.len() / LINE * LINE;
        let (to, last) = to.split_at_mut(lines);
        let (from, last_from) = from.split_at(lines);
        stream_lines(from, to);
        last.copy_from_slice(last_from);
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

// Whole lines, aligned on the side that is written. SSE2 is part of every x86-64.
#[cfg(target_arch = "x86_64")]
fn stream_lines(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    debug_assert!(to.is_empty() || to.as_ptr().addr().is_multiple_of(LINE), "aligned lines");
    for (from, to) in from.chunks_exact(16).zip(to.chunks_exact_mut(16)) {
        let (from, to): (*const __m128i, *mut __m128i) =
            (from.as_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: 16 bytes of `from`; no alignment is asked for.
        let value = unsafe { _mm_loadu_si128(from) };
        // SAFETY: 16 bytes of `to`, aligned since the lines are.
        unsafe { _mm_stream_si128(to, value) };
    }
    // Streaming stores are not ordered with others; who is told that the copy is done must see it.
    // SAFETY: an instruction of every x86-64, without operands.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_and_alignment() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for start in 0..70 {
            for length in [0, 1, 15, 63, 64, 65, 128, 200, 777] {
                let mut to = vec![0u8; 1000];
                copy(&from[start..start + length], &mut to[start..start + length]);
                assert_eq!(to[start..start + length], from[start..start + length]);
                assert!(to[..start].iter().chain(&to[start + length..]).all(|byte| *byte == 0));
                copy(&from[..length], &mut to[start..start + length]);
                assert_eq!(to[start..start + length], from[..length]);
            }
        }
    }
}
