//! `cargo xtask test`: every check and test there is.
//!
//! The wheel and the test programs are built while torch is installed. Then the Python tests, the Rust tests
//! and cargo's checks run side by side. A part that fails stops only the parts that need it.

mod counts;
mod fleet;
mod python;
mod pythons;
mod report;
mod rust;

use std::thread;

use report::Report;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Play every seed of the random tests instead of a tenth, and run the Python tests with the
    /// oldest torch, too.
    #[arg(long)]
    long: bool,
    /// Show the output of parts that pass, too.
    #[arg(long, short)]
    verbose: bool,
}

/// Which parts to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    All,
    Python,
    /// The Python package on every Python that is found.
    Pythons,
    /// What needs a cluster of Ray.
    Fleet,
}

/// Runs parts. Fails if one of them failed.
pub(crate) fn run(options: Options, parts: Parts) -> anyhow::Result<()> {
    let report = &Report::new(options.long, options.verbose)?;
    let environment = &python::environment();
    thread::scope(|scope| {
        let wheel = || python::wheel(report);
        match parts {
            Parts::Pythons => return pythons::on_each(report, wheel().as_deref()),
            Parts::Fleet => return fleet::test(report, wheel().as_deref()),
            Parts::All | Parts::Python => {}
        }
        let filled = scope.spawn(|| environment.make(report));
        if parts == Parts::All {
            rust::format(report);
        }
        let wheel = wheel();
        let built = (parts == Parts::All).then(|| rust::build(report));
        let python = filled.join().expect("no part panics");
        scope.spawn(move || {
            python::test(report, python.as_deref(), wheel.as_deref());
            if options.long {
                pythons::with_oldest_torch(report, wheel.as_deref());
            }
        });
        if let Some(programs) = built {
            scope.spawn(move || rust::test(report, programs));
            rust::check(report);
        }
    });
    report.finish()
}
