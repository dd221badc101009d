//! The commands, as a user meets them.

mod agents;
mod cluster;
mod demo;
mod doctor;
mod floor;
mod generate;
mod hard_times;
mod hardship;
mod metrics;
mod operators;
mod permissions;
mod program;
mod ps;
mod refusals;
mod replay;
mod report;
mod suspend;
mod terminal;
mod top;
mod why;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_lowtide");
