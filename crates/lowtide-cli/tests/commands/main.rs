//! The commands, as a user meets them.

mod bench;
mod doctor;
mod program;
mod ps;
mod replay;
