//! The commands, as a user meets them.

mod agents;
mod bench;
mod demo;
mod doctor;
mod floor;
mod generate;
mod hard_times;
mod permissions;
mod program;
mod ps;
mod replay;
mod suspend;
mod terminal;
