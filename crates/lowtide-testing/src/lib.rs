//! Test tools for lowtide: a driver double, and suites that check what devices and drivers do. Not a
//! product.

mod code;
pub mod conformance;
pub mod double;
pub mod forks;
mod keys;
pub mod noise;
pub mod raw;
pub mod refusing;
pub mod role;
pub mod rules;
mod share;
mod strikes;
pub mod suite;

pub use noise::{Dice, weights};
pub use share::{is_long_run, share};
