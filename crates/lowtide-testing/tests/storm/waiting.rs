//! Switches for deeds that break lowtide in a way that is known. They are switched on with their cure.

/// In a forked child, a gate and a releaser that it inherited refuse.
pub(crate) const RELEASERS_REFUSE_AFTER_A_FORK: bool = false;
