//! The commands, as a user meets them.

mod doctor;
mod program;
mod ps;
mod replay;
