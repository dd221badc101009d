//! Forks: how gates, releasers and owners notice that a forked child inherited them.
//!
//! A child has its parent's memory and none of its threads. A lock that one of them held stays locked in
//! the child for ever, and what is under it may be half-written. So everything with a lock remembers the
//! process that made it, and looks before it locks.

use lowtide_device::process::Generation;

/// The process that something was made in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home(Generation);

impl Default for Home {
    fn default() -> Home {
        Home(Generation::current())
    }
}

impl Home {
    /// Returns whether this is the process that made it. Costs one load, and takes no lock.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0.is_current()
    }
}

/// Says why something that a forked child inherited refuses.
pub(crate) fn refusal(what: &str) -> String {
    format!("this {what} belongs to the parent process: make a new one after the fork")
}
