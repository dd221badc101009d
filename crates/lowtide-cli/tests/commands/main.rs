//! The commands, as a user meets them.

mod bench;
mod demo;
mod doctor;
mod floor;
mod program;
mod ps;
mod replay;
mod terminal;
