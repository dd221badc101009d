//! The thread that puts the process to sleep and wakes it: when it does so by itself, and how other processes ask.

pub(crate) mod idle;
pub(crate) mod socket;
pub(crate) mod worker;
