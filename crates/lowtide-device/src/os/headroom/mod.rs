//! Host memory that can still be taken: the least of what the machine and every control group around
//! this process have left.
//!
//! Memory is [granted](grant) before it is taken, so that two callers are not both promised the last of
//! it.

mod grants;
mod left;

#[doc(hidden)]
pub use grants::pretend;
pub use grants::{HostGrant, grant, require};
pub use left::HostHeadroom;
pub(crate) use left::total;
