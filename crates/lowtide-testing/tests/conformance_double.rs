//! The conformance suite for devices, on `double`.

use std::process::ExitCode;

use lowtide_testing::{conformance, suite};

fn main() -> ExitCode {
    let target = suite::Target::Double;
    suite::main("conformance", target, conformance::cases(target))
}
