//! A page of memory as bytes: its digest, its packed form, its copy.
//!
//! These are functions of bytes and know no device. The GPU computes digests and packed forms
//! too, bit for bit, in the kernels of `lowtide-device`. They are a crate of their own because they are
//! optimised in tests, where what calls them is not.

pub mod copying;
pub mod digest;
pub mod packing;
