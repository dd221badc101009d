//! Switches for deeds that once broke lowtide in a way that was known. Those that are off still do, and
//! are switched on with their cure.

/// In a forked child, pools and blocks that it inherited refuse.
pub(crate) const POOLS_REFUSE_AFTER_A_FORK: bool = true;
/// In a forked child, a gate and a releaser that it inherited refuse.
pub(crate) const RELEASERS_REFUSE_AFTER_A_FORK: bool = true;
/// A pressure callback panics.
pub(crate) const PRESSURE_PANICS: bool = true;
/// A pressure callback allocates.
pub(crate) const PRESSURE_ALLOCATES: bool = false;
/// A trim's callback puts tags to sleep.
pub(crate) const TRIM_SLEEPS: bool = true;
/// A hook asks its own releaser for a release, on another thread.
pub(crate) const HOOK_RELEASES: bool = true;
