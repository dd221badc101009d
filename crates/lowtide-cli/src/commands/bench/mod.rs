//! `lowtide bench`: what the pool takes for its work, on this machine, as data.

mod alloc;
mod model;
mod sleep;
mod work;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time of a hit: a block freed and another allocated, over many live blocks.
    Alloc(alloc::Options),
    /// Time of sleep and wake, beside the plain copy of the same bytes in the same run.
    Sleep(sleep::Options),
    /// One process's part of `bench sleep`, which runs this.
    #[command(hide = true)]
    SleepChild(sleep::Options),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Alloc(options) => alloc::run(options),
        Bench::Sleep(options) => sleep::run(options),
        Bench::SleepChild(options) => sleep::child(options),
    }
}

/// The middle of the measured times.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
