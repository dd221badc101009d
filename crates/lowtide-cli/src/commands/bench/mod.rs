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

/// The middle of the measured times; of an even number, between the two in the middle.
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
