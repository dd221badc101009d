//! Bytes that tests write, and the first that came back wrong.

mod bytes;
mod dice;
pub mod weights;
pub mod words;

pub use bytes::{close, first_difference, first_other, noise};
pub use dice::Dice;
