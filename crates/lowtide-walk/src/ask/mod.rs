//! Asks live objects what they refer to, without running any code of the program.

pub(crate) mod dlpack;
pub(crate) mod kind;
pub(crate) mod numpy;
pub(crate) mod object;
pub(crate) mod prefetch;
pub(crate) mod references;
pub(crate) mod types;
