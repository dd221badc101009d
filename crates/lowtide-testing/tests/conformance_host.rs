//! The conformance suite for devices, on `host`.

use std::process::ExitCode;

use lowtide_testing::{conformance, suite};

fn main() -> ExitCode {
    let target = suite::Target::Host;
    suite::main("conformance", target, conformance::cases(target))
}
