//! Reads memory ahead: a hint, which may be given for any address.

/// How many objects ahead memory is prefetched.
pub(crate) const AHEAD: usize = 16;

/// Prefetches the cache line at an address, on x86-64.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this is a hint; it reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
