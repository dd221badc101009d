//! The driver that the program has loaded: its functions, its structures, and the calls that the agent makes itself.

pub(crate) mod busy;
pub(crate) mod calls;
pub(crate) mod codes;
pub(crate) mod entries;
pub(crate) mod layouts;
pub(crate) mod library;
