//! Many turns of sleep and wake with a captured graph, on the driver double.

mod hands;
mod turns;

use std::process::ExitCode;

use lowtide_testing::suite::{self, Target};

fn main() -> ExitCode {
    suite::main("turns", Target::Double, turns::cases())
}
