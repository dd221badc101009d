//! The thread that puts the process to sleep and wakes it: when it does so by itself, and how others ask.

mod arbiter;
mod idle;
mod outside;
mod socket;
pub(crate) mod start;
mod waker;
mod worker;
