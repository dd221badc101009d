//! The driver's codes that the agent gives or understands.

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// No context is current, or not one that may do this.
pub(crate) const INVALID_CONTEXT: i32 = 201;
/// The handle is of nothing, or of what is open in another context.
pub(crate) const INVALID_HANDLE: i32 = 400;
/// The driver has no function of this name.
pub(crate) const NOT_FOUND: i32 = 500;
/// The work is still under way.
pub(crate) const NOT_READY: i32 = 600;
/// An error that the driver has no name for.
pub(crate) const UNKNOWN: i32 = 999;
