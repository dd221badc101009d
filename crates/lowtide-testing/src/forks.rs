//! Forked children: a test does something in a child of this process, which tells whether it went well.
#![allow(unsafe_code, reason = "forks")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

/// A child that hangs is ended by the kernel after this time.
const HANGS_AFTER_S: u32 = 300;

/// Runs `work` in a forked child and waits for it.
///
/// # Panics
/// With the number of the first check that is false in the child, from 1; if the child hangs, or is ended
/// by a signal.
pub fn in_child(work: impl FnOnce() -> Vec<bool>) {
    // SAFETY: the child touches only what is tested, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(HANGS_AFTER_S) };
        let failed = (1..).zip(work()).find(|(_, holds)| !holds).map_or(0, |(number, _)| number);
        // SAFETY: ends the child without the test harness's exit handlers.
        unsafe { libc::_exit(failed) };
    }
    wait_for_child(child);
}

/// Waits for a child of this process.
///
/// # Panics
/// If the child ends with another status than zero, or is no child of this process.
pub fn wait_for_child(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: writes the status of our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the check that failed in the child");
}

/// Runs `work` while two other threads repeat `noise`. Whatever lock they hold at the moment of a fork is
/// locked in the child for ever.
pub fn beside(noise: impl Fn() + Sync, work: impl FnOnce()) {
    /// Ends the other threads, also where a check fails.
    struct EndOf<'a>(&'a AtomicBool);
    impl Drop for EndOf<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOf(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    noise();
                }
            });
        }
        work();
    });
}
