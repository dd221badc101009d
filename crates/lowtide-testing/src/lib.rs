//! Test tools for lowtide: a driver double, and the suites that hold devices and drivers to their
//! word. Not a product.

pub mod conformance;
mod dice;
pub mod double;
pub mod raw;
pub mod rules;
pub mod suite;

pub use dice::Dice;

use lowtide_device::digest::Keys;

/// Keys that are the same in every run.
pub(crate) fn keys() -> &'static Keys {
    static KEYS: std::sync::LazyLock<Keys> = std::sync::LazyLock::new(|| Keys::from_seed(1));
    &KEYS
}
