//! What people read: pages of text as wide as the terminal, and the progress of long work.

pub mod page;
pub mod progress;
mod terminal;
