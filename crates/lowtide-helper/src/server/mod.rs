//! The resident process: its start, its socket and its connections.

pub(crate) mod program;
mod serving;
mod standing;
