//! The gate's atomic word: two flags and the number of active passes.
//!
//! All atomic operations of the gate are here, with their memory orderings. Three rules hold:
//! - CLOSING changes only under the gate's lock. So a thread that holds the lock and sees it set, or
//!   clear, may rely on it.
//! - While CLOSING is set the count only falls, except by [`Word::enter_within`], whose caller
//!   already has a pass. So a closer that reads 0 reads 0 until it opens the gate.
//! - Every change is a read-modify-write. Entering acquires what opening and waking released, and
//!   a closer that reads 0 acquires what all passes released when they left.

use crate::sync::AtomicUsize;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// A caller is closing the gate, or has closed it.
const CLOSING: usize = 1;
/// Memory may be asleep: the next work wakes it before it begins.
const ASLEEP: usize = 2;
/// One active pass. The count has the bits above the flags.
const PASS: usize = 4;

#[derive(Debug)]
pub(super) struct Word(AtomicUsize);

/// A value of the word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen(usize);

impl Seen {
    pub(super) fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }

    pub(super) fn is_asleep(self) -> bool {
        self.0 & ASLEEP != 0
    }

    pub(super) fn active(self) -> usize {
        self.0 / PASS
    }
}

impl Default for Word {
    fn default() -> Word {
        Word(AtomicUsize::new(0))
    }
}

impl Word {
    /// Reads the word. Acquires, because a closer relies on a count of 0.
    pub(super) fn read(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// Whether the gate is closing or closed, for a checkpoint: no memory is accessed because of it.
    pub(super) fn is_closing(&self) -> bool {
        Seen(self.0.load(Relaxed)).is_closing()
    }

    /// Adds a pass unless the gate is closing. Returns the word before it, or `None`.
    pub(super) fn enter(&self) -> Option<Seen> {
        let mut now = self.0.load(Relaxed);
        while !Seen(now).is_closing() {
            match self.0.compare_exchange_weak(now, now + PASS, Acquire, Relaxed) {
                Ok(_) => return Some(Seen(now)),
                Err(changed) => now = changed,
            }
        }
        None
    }

    /// Adds a pass although the gate may be closing. The caller has an active pass, so the gate is
    /// not closed yet.
    pub(super) fn enter_within(&self) {
        let before = Seen(self.0.fetch_add(PASS, Relaxed));
        debug_assert!(before.active() > 0, "a pass within a pass that is not active");
    }

    /// Removes a pass. Returns whether it was the last one and a closer waits for it.
    pub(super) fn leave(&self) -> bool {
        let before = Seen(self.0.fetch_sub(PASS, Release));
        debug_assert!(before.active() > 0, "a pass left twice");
        before.is_closing() && before.active() == 1
    }

    /// Keeps new work out. Only under the lock, in an open gate.
    pub(super) fn close(&self) {
        self.0.fetch_or(CLOSING, Relaxed);
    }

    /// Closes the gate if no pass is active; otherwise returns the word as it was. Only under the
    /// lock, in an open gate.
    pub(super) fn close_if_quiet(&self) -> Result<(), Seen> {
        let mut now = self.0.load(Relaxed);
        while Seen(now).active() == 0 {
            match self.0.compare_exchange_weak(now, now | CLOSING, Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => now = changed,
            }
        }
        Err(Seen(now))
    }

    /// Lets work in again and counts the passes that were held as active, in one step. Only under
    /// the lock, by the closer.
    pub(super) fn open(&self, held: usize) {
        // CLOSING is set, so taking it away borrows from no other bit.
        let before = Seen(self.0.fetch_add((held * PASS).wrapping_sub(CLOSING), Release));
        debug_assert!(before.is_closing(), "an open gate was opened");
    }

    /// Says that memory may be asleep. Only by the closer: opening releases it.
    pub(super) fn mark_asleep(&self) {
        self.0.fetch_or(ASLEEP, Relaxed);
    }

    /// Says that memory is awake, to work that enters from now on.
    pub(super) fn mark_awake(&self) {
        self.0.fetch_and(!ASLEEP, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_count_do_not_touch_each_other() {
        let word = Word::default();
        assert!(word.enter().is_some_and(|seen| !seen.is_asleep() && seen.active() == 0));
        word.enter_within();
        word.close();
        word.mark_asleep();
        assert!(word.enter().is_none());
        let seen = word.read();
        assert_eq!((seen.is_closing(), seen.is_asleep(), seen.active()), (true, true, 2));
        assert!(!word.leave() && word.leave(), "the last one is told");
        word.open(3);
        let seen = word.read();
        assert_eq!((seen.is_closing(), seen.is_asleep(), seen.active()), (false, true, 3));
        assert_eq!(word.close_if_quiet().unwrap_err().active(), 3);
        assert!(!(word.leave() || word.leave() || word.leave()), "nobody waits");
        word.mark_awake();
        assert!(word.close_if_quiet().is_ok() && !word.read().is_asleep());
        word.open(0);
        assert_eq!(word.0.load(Relaxed), 0);
    }
}
