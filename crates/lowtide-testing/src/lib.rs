//! Test tools for lowtide: a driver double, and the suites that hold devices and drivers to their
//! word. Not a product.

pub mod conformance;
mod dice;
pub mod double;
mod keys;
pub mod raw;
pub mod rules;
pub mod suite;

pub use dice::Dice;
