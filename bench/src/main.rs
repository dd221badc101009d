//! The `lowtide-bench` program: how fast the pool is on this machine, as data.

mod alloc;
mod model;
mod sleep;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lowtide_cli::program::ending::{EXIT_CODES, Ending};
use lowtide_cli::program::{self, VARIABLES, generate};

/// Measures lowtide's pool on this machine: allocation, sleep and wake.
#[derive(Debug, Parser)]
#[command(
    name = "lowtide-bench",
    version,
    after_help = EXIT_CODES,
    after_long_help = format!("{EXIT_CODES}\n\n{VARIABLES}")
)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Measure a hit: a block is freed and another is allocated, with many live blocks.
    Alloc(alloc::Options),
    /// Measure sleep and wake, beside a plain copy of the same bytes in the same run.
    Sleep(sleep::Options),
    /// Write completions for bash, zsh and fish, and man pages, into a folder.
    Generate(generate::Options),
    /// Measure in one process. `sleep` runs this.
    #[command(hide = true)]
    SleepChild(sleep::Options),
}

fn main() -> ExitCode {
    program::run(|arguments: &Arguments| run(&arguments.bench))
}

fn run(bench: &Bench) -> anyhow::Result<Ending> {
    match bench {
        Bench::Alloc(options) => alloc::run(options),
        Bench::Sleep(options) => sleep::run(options),
        Bench::Generate(options) => generate::run::<Arguments>(options),
        Bench::SleepChild(options) => sleep::child(options),
    }
}

/// Returns the median: the value in the middle, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = if values.len().is_multiple_of(2) { upper - 1 } else { upper };
    f64::midpoint(values[lower], values[upper])
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        for (values, expected) in
            [(vec![7.0], 7.0), (vec![3.0, 1.0], 2.0), (vec![9.0, 1.0, 2.0], 2.0)]
        {
            assert!((median(values.clone()) - expected).abs() < 1e-9, "{values:?}");
        }
    }
}
