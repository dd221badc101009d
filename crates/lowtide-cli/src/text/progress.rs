//! Progress of long work, in bytes: a bar on standard error that is gone when the work is done, and
//! never there where standard error is no terminal.

use std::borrow::Cow;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lowtide_device::Bytes;

/// Shows that something without a size is being done.
pub fn spinner(text: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(text.into());
    tick(&bar, Duration::from_millis(100));
    bar
}

// A bar moves by a thread of its own, whose start panics where no thread is to be had. A bar that
// nobody sees needs none.
fn tick(bar: &ProgressBar, interval: Duration) {
    let can_start = || thread::Builder::new().spawn(|| ()).is_ok_and(|probe| probe.join().is_ok());
    if !bar.is_hidden() && can_start() {
        bar.enable_steady_tick(interval);
    }
}

/// A bar of bytes done out of bytes planned. It vanishes when it is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar for so many bytes.
    pub fn of(planned: Bytes) -> Progress {
        let template = "{bar:20} {binary_bytes} of {binary_total_bytes} {elapsed} {wide_msg}";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(planned.0).with_style(style);
        tick(&bar, Duration::from_millis(200));
        Progress { bar }
    }

    /// Returns a bar that nobody sees.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden() }
    }

    /// Plans so many bytes in all.
    pub fn plan(&self, planned: Bytes) {
        self.bar.set_length(planned.0);
    }

    /// Says what is being done.
    pub fn say(&self, text: impl Into<Cow<'static, str>>) {
        self.bar.set_message(text);
    }

    /// Counts bytes as done.
    pub fn add(&self, done: Bytes) {
        self.bar.inc(done.0);
    }

    /// Takes the bar away while `work` writes to the terminal.
    pub fn suspend<R>(&self, work: impl FnOnce() -> R) -> R {
        self.bar.suspend(work)
    }

    /// Returns the bytes done and the bytes planned.
    pub fn counted(&self) -> (Bytes, Bytes) {
        (Bytes(self.bar.position()), Bytes(self.bar.length().unwrap_or_default()))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
