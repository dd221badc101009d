//! The requirements R1–R45 and R47, on a real GPU.

mod requirements;

use std::process::ExitCode;

use lowtide_testing::suite::{self, Target};

fn main() -> ExitCode {
    suite::main("requirements", Target::Cuda, requirements::cases(Target::Cuda))
}
