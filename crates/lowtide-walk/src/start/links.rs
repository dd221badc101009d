//! The links in front of each object that the collector tracks. They make rings: one for each generation, and one for
//! frozen objects.

use std::ptr::with_exposed_provenance;

use pyo3::ffi;

/// The links in front of an object that the collector tracks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) next: usize,
    pub(crate) previous: usize,
}

/// Bits of a link that are no part of the address.
pub(crate) const FLAGS: usize = 3;

/// Returns whether the collector has an object in one of its lists.
pub(crate) fn is_tracked(address: usize) -> bool {
    let object = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the object is alive; one that is not collected at all is not tracked.
    (unsafe { ffi::PyObject_GC_IsTracked(object) }) != 0
}

/// Returns the address of the links after those at an address.
#[inline]
pub(crate) fn next(at: usize) -> usize {
    // SAFETY: at the address are the links of an object that the collector tracks, or of a head.
    unsafe { (*with_exposed_provenance::<Header>(at)).next & !FLAGS }
}

/// Returns the address of the links before those at an address.
pub(crate) fn previous(at: usize) -> usize {
    // SAFETY: as in `next`.
    unsafe { (*with_exposed_provenance::<Header>(at)).previous & !FLAGS }
}
