//! The conformance suite for devices, on `cuda`.

use std::process::ExitCode;

use lowtide_testing::{conformance, suite};

fn main() -> ExitCode {
    let target = suite::Target::Cuda;
    suite::main("conformance", target, conformance::cases(target))
}
