//! An agent's messages, and asking it.

pub(crate) mod cap;
pub(crate) mod client;
pub(crate) mod messages;
pub(crate) mod obstacle;
pub(crate) mod outside;
pub(crate) mod sharing;
