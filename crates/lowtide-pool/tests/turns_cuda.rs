//! Many turns of sleep and wake with a captured graph, on a real GPU.

mod hands;
mod turns;

use std::process::ExitCode;

use lowtide_testing::suite::{self, Target};

fn main() -> ExitCode {
    suite::main("turns", Target::Cuda, turns::cases())
}
