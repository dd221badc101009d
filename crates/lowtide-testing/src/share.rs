//! How much of a random test runs: a tenth by default, everything in a long run.
//!
//! `cargo xtask test --long` sets `LOWTIDE_LONG=1`. The short share is always the first tenth, so
//! that two runs of the same commit do the same.

use std::ops::Range;

const SHORT: u64 = 10;

/// Returns whether this is a long run: `LOWTIDE_LONG` is set to `1`.
pub fn is_long_run() -> bool {
    std::env::var_os("LOWTIDE_LONG").is_some_and(|value| value == "1")
}

/// Returns the seeds, or turns, to run: all of `seeds` in a long run, their first tenth otherwise.
/// At least one of them runs.
pub fn share(seeds: Range<u64>) -> Range<u64> {
    share_of(seeds, is_long_run())
}

fn share_of(seeds: Range<u64>, is_long: bool) -> Range<u64> {
    if is_long {
        return seeds;
    }
    let tenth = (seeds.end - seeds.start).div_ceil(SHORT);
    seeds.start..seeds.start + tenth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_has_the_first_tenth_and_never_nothing() {
        assert_eq!(share_of(500..1500, false), 500..600);
        assert_eq!(share_of(3..4, false), 3..4);
        assert_eq!(share_of(500..1500, true), 500..1500);
    }
}
