//! The pool's suites on the driver double and on a real GPU: `--help` lists the arguments.

mod captures;
mod faults;
#[path = "../pool/game.rs"]
mod game;
#[path = "../pool/hands.rs"]
mod hands;
mod turns;

use std::process::ExitCode;

use lowtide_testing::suite::{self, Suite, Target};

fn main() -> ExitCode {
    suite::main(&[
        Suite::new("turns", &[Target::Double, Target::Cuda], |_| turns::cases()),
        Suite::new("captures", &[Target::Double, Target::Cuda], |_| captures::cases()),
        Suite::new("pool_faults", &[Target::Double], |_| faults::cases()),
    ])
}
