//! A page of memory as bytes: its digest, its packed form, its copy.
//!
//! These are functions of bytes and know no device. The GPU computes digests and packed forms too, bit for
//! bit, in the kernels beside this crate's sources.

pub(crate) mod copying;
pub mod digest;
pub mod packing;
