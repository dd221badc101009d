//! How many tests passed, failed and were skipped, and why: read from what test programs print.
//!
//! Understands Rust's test programs, the suites of `lowtide-testing` and pytest with `-rs`.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// The reason of a skip that gives none.
const NO_REASON: &str = "no reason given";

/// The tests of one part, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// How many were skipped, by reason.
    pub(crate) skipped: BTreeMap<String, usize>,
}

impl Counts {
    /// Reads the output of a part.
    pub(crate) fn read(output: &str) -> Counts {
        let mut reader = Reader::default();
        output.lines().for_each(|line| reader.read(line));
        reader.counts
    }

    pub(crate) fn skipped_in_all(&self) -> usize {
        self.skipped.values().sum()
    }

    fn skip(&mut self, why: &str, tests: usize) {
        if tests > 0 {
            *self.skipped.entry(why.trim().to_owned()).or_default() += tests;
        }
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, more: &Counts) {
        self.passed += more.passed;
        self.failed += more.failed;
        for (why, tests) in &more.skipped {
            self.skip(why, *tests);
        }
    }
}

#[derive(Default)]
struct Reader {
    counts: Counts,
    /// A suite says first why it skips, and at its end how many cases that were.
    why_skipped: Option<String>,
    /// Skips since the last result that gave their own reason.
    explained: usize,
}

impl Reader {
    fn read(&mut self, line: &str) {
        if let Some((suite, why)) = line.split_once(": skipped, because ") {
            self.why_skipped = Some(format!("{suite}: {why}"));
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.rust_result(result);
        } else if let Some((_, why)) = line.split_once(" ... ignored, ") {
            self.explained += 1;
            self.counts.skip(why, 1);
        } else if let Some(skip) = line.strip_prefix("SKIPPED [") {
            self.pytest_skip(skip);
        } else if is_pytest_result(line) {
            self.pytest_result(line);
        }
    }

    // `ok. 27 passed; 0 failed; 3 ignored; …`
    fn rust_result(&mut self, line: &str) {
        self.counts.passed += number_before(line, "passed");
        self.counts.failed += number_before(line, "failed");
        let unexplained = number_before(line, "ignored").saturating_sub(self.explained);
        let why = self.why_skipped.take();
        self.counts.skip(why.as_deref().unwrap_or(NO_REASON), unexplained);
        self.explained = 0;
    }

    // `1 failed, 365 passed, 3 skipped in 4.05s`. The skipped ones have lines of their own.
    fn pytest_result(&mut self, line: &str) {
        self.counts.passed += number_before(line, "passed") + number_before(line, "xfailed");
        for failure in ["failed", "error", "errors", "xpassed"] {
            self.counts.failed += number_before(line, failure);
        }
    }

    // `3] crates/…/test_zoo.py:77: needs a GPU`
    fn pytest_skip(&mut self, line: &str) {
        let Some((tests, rest)) = line.split_once("] ") else { return };
        let why = rest.split_once(": ").map_or(NO_REASON, |(_, why)| why);
        self.counts.skip(why, tests.parse().unwrap_or(0));
    }
}

// It ends with ` in 4.05s`, or ` in 64.05s (0:01:04)`.
fn is_pytest_result(line: &str) -> bool {
    let end = line.trim_matches(['=', ' ']).rsplit_once(" in ").map_or("", |(_, end)| end);
    let time = end.split(' ').next().and_then(|time| time.strip_suffix('s'));
    time.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

/// The number right before a word, or 0.
fn number_before(line: &str, word: &str) -> usize {
    let mut words =
        line.split(|letter: char| !letter.is_alphanumeric()).filter(|it| !it.is_empty());
    let mut last = "";
    let before = words.find_map(|this| {
        let before = (this == word).then_some(last);
        last = this;
        before
    });
    before.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(counts: &Counts) -> Vec<(&str, usize)> {
        counts.skipped.iter().map(|(why, tests)| (why.as_str(), *tests)).collect()
    }

    #[test]
    fn rust_programs_are_summed_and_a_reason_is_counted_once() {
        let counts = Counts::read(
            "test a ... ok\n\
             test b ... ignored, by hand only\n\
             test c ... ignored\n\
             test result: FAILED. 27 passed; 1 failed; 2 ignored; 0 measured; finished in 0.85s\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; finished in 0.85s\n",
        );
        assert_eq!((counts.passed, counts.failed), (30, 1));
        assert_eq!(skipped(&counts), [("by hand only", 1), (NO_REASON, 1)]);
    }

    #[test]
    fn a_suite_without_its_device_gives_the_reason_for_all_its_cases() {
        let counts = Counts::read(
            "rules on cuda: skipped, because there is no driver\n\
             test cuda::x ... ignored\n\
             test result: ok. 0 passed; 0 failed; 99 ignored; finished in 0.00s\n\
             rules on double\n\
             test result: ok. 99 passed; 0 failed; 0 ignored; finished in 0.00s\n",
        );
        assert_eq!((counts.passed, counts.failed), (99, 0));
        assert_eq!(skipped(&counts), [("rules on cuda: there is no driver", 99)]);
    }

    #[test]
    fn pytest_counts_at_its_end_and_says_why_it_skipped() {
        let counts = Counts::read(
            "SKIPPED [3] crates/x/tests/test_zoo.py:77: needs a GPU: in captures\n\
             = 1 failed, 365 passed, 3 skipped, 2 errors in 64.05s (0:01:04) =\n",
        );
        assert_eq!((counts.passed, counts.failed), (365, 3));
        assert_eq!(skipped(&counts), [("needs a GPU: in captures", 3)]);
        assert_eq!(Counts::read("12 passed in 4.05s").passed, 12);
        assert_eq!(Counts::read("12 passed in review by us"), Counts::default());
    }
}
