//! The rules of the driver, asked of `double`.

use std::process::ExitCode;

use lowtide_testing::{rules, suite};

fn main() -> ExitCode {
    rules::main(suite::Target::Double)
}
