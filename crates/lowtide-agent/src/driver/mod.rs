//! The driver that the program has loaded: its structures, and the calls that the agent makes itself.

pub(crate) mod arrays;
pub(crate) mod busy;
pub(crate) mod calls;
pub(crate) mod properties;
