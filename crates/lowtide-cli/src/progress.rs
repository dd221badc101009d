//! Progress on long work: on a terminal, to standard error, gone when it is done.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line that says what is being done.
pub(crate) fn spinner(text: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(text.into());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar over so many steps, with the time it has taken so far: a step may be long.
pub(crate) fn steps(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}")
        .expect("a valid template");
    let bar = ProgressBar::new(count).with_style(style);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}
