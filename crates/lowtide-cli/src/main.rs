//! The `lowtide` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    lowtide_cli::main()
}
