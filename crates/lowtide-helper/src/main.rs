//! The program `lowtide-helper`, which other parts of lowtide start.

use std::process::ExitCode;

fn main() -> ExitCode {
    lowtide_helper::main()
}
