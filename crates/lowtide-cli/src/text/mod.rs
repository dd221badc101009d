//! What people read: pages of text as wide as the terminal, and the progress of long work.

pub(crate) mod clock;
pub mod page;
pub mod progress;
pub(crate) mod terminal;
