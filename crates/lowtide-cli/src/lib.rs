//! The `lowtide` program, and what it shares with `lowtide-bench`: one file per command under `commands/`.
#![allow(clippy::missing_errors_doc, reason = "what a program cannot do, its message says")]

pub mod arguments;
mod commands;
pub mod content;
pub mod program;
pub mod text;

pub use commands::main;
