//! Copies of many gigabytes by a few threads, with the processor's instructions for that.
//!
//! An ordinary store reads its line from memory before it writes it, and pushes other lines out of
//! the caches. For gigabytes that are not read again soon, both are wasted: stores that go past the
//! caches halve the traffic to memory, which is what limits several threads that copy at once.
#![allow(unsafe_code, reason = "copies through raw pointers with the processor's streaming stores")]

/// Copies bytes past the caches. Other threads and devices see them when this returns.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn past_caches(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "as many bytes on both sides");
    #[cfg(target_arch = "x86_64")]
    lines::copy(from, to);
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Copies bytes so that they stay in the caches, because the device reads them next. Several pages are
/// read at once, since a processor prefetches within a page only (measured with memory that is in no
/// cache: 8 to 19% faster than the ordinary copy).
///
/// # Panics
/// If the lengths differ.
pub(crate) fn into_caches(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "as many bytes on both sides");
    #[cfg(target_arch = "x86_64")]
    if lines::copy_interleaved(from, to) {
        return;
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512, _mm512_storeu_si512,
        _mm512_stream_si512,
    };
    use std::sync::LazyLock;

    type Line = [u8; 64];

    // A store of a whole line leaves nothing to be put together: with it fewer threads reach the
    // speed of a link (measured on an H200's machine: 1.04 of the plain copy instead of 1.05 to 1.2).
    static HAS_WHOLE_LINES: LazyLock<bool> =
        LazyLock::new(|| std::arch::is_x86_feature_detected!("avx512f"));

    pub(super) fn copy(from: &[u8], to: &mut [u8]) {
        let ahead = to.as_ptr().align_offset(size_of::<Line>()).min(to.len());
        let (first, to) = to.split_at_mut(ahead);
        let (first_from, from) = from.split_at(ahead);
        first.copy_from_slice(first_from);
        let ((from, last_from), (to, last)) = (from.as_chunks(), to.as_chunks_mut());
        if *HAS_WHOLE_LINES {
            // SAFETY: the processor has AVX-512; the lines on the side that is written are aligned.
            unsafe { stream_whole(from, to) };
        } else {
            // SAFETY: the lines on the side that is written are aligned.
            unsafe { stream_quarters(from, to) };
        }
        // Streaming stores are not ordered with others; this makes them visible before the copy counts
        // as done.
        // SAFETY: an instruction of every x86-64, without operands.
        unsafe { _mm_sfence() };
        last.copy_from_slice(last_from);
    }

    /// The number of pages that are copied side by side.
    const ABREAST: usize = 4;
    const PAGE_LINES: usize = 4096 / size_of::<Line>();

    /// Copies several pages side by side. Returns false, and copies nothing, on a processor without
    /// the wide registers.
    pub(super) fn copy_interleaved(from: &[u8], to: &mut [u8]) -> bool {
        if !*HAS_WHOLE_LINES {
            return false;
        }
        let ((from, last_from), (to, last)) = (from.as_chunks(), to.as_chunks_mut());
        let (groups, rest_from) = from.as_chunks::<{ ABREAST * PAGE_LINES }>();
        let (groups_to, rest) = to.as_chunks_mut::<{ ABREAST * PAGE_LINES }>();
        for (from, to) in groups.iter().zip(groups_to) {
            // SAFETY: the processor has AVX-512.
            unsafe { copy_abreast(from, to) };
        }
        rest.copy_from_slice(rest_from);
        last.copy_from_slice(last_from);
        true
    }

    // Line by line of each page in turn.
    #[target_feature(enable = "avx512f")]
    unsafe fn copy_abreast(
        from: &[Line; ABREAST * PAGE_LINES],
        to: &mut [Line; ABREAST * PAGE_LINES],
    ) {
        for at in 0..PAGE_LINES {
            for page in 0..ABREAST {
                let line = page * PAGE_LINES + at;
                // SAFETY: a line of `from`; no alignment is asked for.
                let bytes = unsafe { _mm512_loadu_si512(from[line].as_ptr().cast()) };
                // SAFETY: a line of `to`; no alignment is asked for.
                unsafe { _mm512_storeu_si512(to[line].as_mut_ptr().cast(), bytes) };
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_whole(from: &[Line], to: &mut [Line]) {
        for (from, to) in from.iter().zip(to) {
            // SAFETY: a line of `from`; no alignment is asked for.
            let line = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
            // SAFETY: a line of `to`, aligned as the caller promises.
            unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), line) };
        }
    }

    // SSE2 is part of every x86-64.
    pub(super) unsafe fn stream_quarters(from: &[Line], to: &mut [Line]) {
        let quarters = to.as_flattened_mut().as_chunks_mut::<16>().0;
        for (from, to) in from.as_flattened().as_chunks::<16>().0.iter().zip(quarters) {
            // SAFETY: 16 bytes of `from`; no alignment is asked for.
            let quarter = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            // SAFETY: 16 bytes of `to`, aligned since the lines are, as the caller promises.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), quarter) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{into_caches, past_caches as copy};

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

    #[test]
    fn pages_side_by_side_arrive_like_others() {
        let from: Vec<u8> = (0..100_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (start, length) in [(0, 0), (0, 63), (3, 4096), (0, 16384), (5, 16385), (1, 99_999)] {
            let mut to = vec![0u8; length + 2];
            into_caches(&from[start..start + length], &mut to[1..=length]);
            assert_eq!(to[1..=length], from[start..start + length]);
            assert_eq!((to[0], to[length + 1]), (0, 0));
        }
    }

    // A processor takes one of the two ways; here both are taken.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn quarters_and_whole_lines_copy_the_same() {
        #[repr(align(64))]
        struct Aligned([[u8; 64]; 3]);
        let from: [[u8; 64]; 3] = std::array::from_fn(|line| [line as u8 + 1; 64]);
        let mut to = Aligned([[0; 64]; 3]);
        // SAFETY: aligned.
        unsafe { super::lines::stream_quarters(&from, &mut to.0) };
        assert_eq!(to.0, from);
        if std::arch::is_x86_feature_detected!("avx512f") {
            let mut to = Aligned([[0; 64]; 3]);
            // SAFETY: aligned, and the processor has it.
            unsafe { super::lines::stream_whole(&from, &mut to.0) };
            assert_eq!(to.0, from);
        }
    }
}
