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
/// The rung `sleep` is cut off after a moment.
pub(crate) const SLEEP_IS_CUT_OFF: bool = false;
/// The holder of a pass asks for a shutdown.
pub(crate) const PASS_HOLDER_SHUTS_DOWN: bool = false;
/// A hook asks its own releaser for a release, on another thread.
pub(crate) const HOOK_RELEASES: bool = true;
