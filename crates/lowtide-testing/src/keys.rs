//! Digest keys for tests.

use std::sync::LazyLock;

use lowtide_device::digest::Keys;

/// Returns keys that are the same in every run.
pub(crate) fn fixed() -> &'static Keys {
    static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::from_seed(1));
    &KEYS
}
