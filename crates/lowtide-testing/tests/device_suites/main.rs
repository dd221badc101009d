//! The suites that hold devices and drivers to their word: `--help` lists the arguments.

mod faults;

use std::process::ExitCode;

use lowtide_testing::suite::{self, Suite, Target};
use lowtide_testing::{conformance, rules};

fn main() -> ExitCode {
    // A rule is asked in a process of its own: this program, started again.
    if let Some(code) = rules::main_of_child() {
        return code;
    }
    suite::main(&[
        Suite::new(
            "conformance",
            &[Target::Host, Target::Double, Target::Cuda],
            conformance::cases,
        ),
        Suite::new("rules", &[Target::Double, Target::Cuda], |_| rules::cases()),
        Suite::new("faults", &[Target::Double], |_| faults::cases()),
    ])
}
