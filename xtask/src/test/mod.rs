//! `cargo xtask test`: every check and test there is.
//!
//! Rust and Python run side by side: installing torch and compiling take about as long, and cargo
//! waits by itself where both want to compile. A part that fails stops only the parts that need it.

mod counts;
mod python;
mod report;
mod rust;

use std::thread;

use report::Report;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Play every seed of the random tests instead of a tenth.
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
}

/// Runs parts. Fails if one of them failed.
pub(crate) fn run(options: Options, parts: Parts) -> anyhow::Result<()> {
    let report = Report::new(options)?;
    thread::scope(|scope| {
        scope.spawn(|| python::test(&report));
        if parts == Parts::All {
            rust::test(&report);
        }
    });
    report.finish()
}
