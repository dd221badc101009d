//! `cargo xtask test`: every check and test there is.
//!
//! Rust and Python run side by side, in an order that leaves no core idle. The Python tests take
//! longest, so the wheel is built before the test programs, while torch is installed. Cargo goes on with
//! lints and docs while tests run, and the Rust tests get all cores once the Python tests have ended. A part that fails stops only the parts that need it.

mod counts;
mod python;
mod pythons;
mod report;
mod rust;

use std::sync::mpsc;
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
}

/// Runs parts. Fails if one of them failed.
pub(crate) fn run(options: Options, parts: Parts) -> anyhow::Result<()> {
    let report = &Report::new(options)?;
    // The sender of each is dropped when that is built, or cannot be; the last when Python is done.
    let ((wheel, has_wheel), (agent, has_agent)) = (mpsc::channel(), mpsc::channel());
    let (python, is_alone) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _told_at_the_end = python;
            if parts == Parts::Pythons {
                return pythons::on_each(report);
            }
            python::test(report, wheel, &has_agent);
            if options.long {
                pythons::with_oldest_torch(report);
            }
        });
        if parts == Parts::All {
            rust::test(report, &has_wheel, agent, is_alone);
        } else {
            drop(agent);
        }
    });
    report.finish()
}
