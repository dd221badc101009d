//! Bytes for tests: making them, and finding the first that is wrong. Not a product.
//!
//! Tests write gigabytes and read them back. That is most of their work, so this crate is optimised in
//! tests, and what uses it need not be.

mod bytes;
mod dice;
pub mod weights;
pub mod words;

pub use bytes::{close, first_difference, first_other, noise};
pub use dice::Dice;
