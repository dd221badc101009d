//! The `lowtide-bench` program, as a user meets it.

mod figures;
mod hard_times;
#[path = "../../../crates/lowtide-cli/tests/commands/hardship.rs"]
mod hardship;
#[path = "../../../crates/lowtide-cli/tests/commands/program.rs"]
#[allow(dead_code, reason = "the tests of `lowtide` use the rest")]
mod program;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_lowtide-bench");
