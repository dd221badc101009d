//! What this thread is doing for a releaser, so that a callback that comes back is recognised.
//!
//! A release asks clocks, gauges, allocators and accounts of the caller. Such code may ask the same
//! releaser for a release, or for its numbers. Granted, the call would wait for its own caller, or ask
//! the same code again, without end. A mark on the thread tells.

use std::cell::RefCell;
use std::marker::PhantomData;

/// What a thread does for a releaser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Runs a release, or waits for its turn.
    Releasing,
    /// Writes the receipt of a release that it refused, for which it asks for numbers.
    Refusing,
    /// Asks a gauge, allocators or accounts for their numbers.
    Asking,
}

/// Tells releasers apart: the address of something that a releaser has one of. It stays where it is
/// while a mark names it, because it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whose(usize);

impl Whose {
    pub(crate) fn owner_of<P>(part: &P) -> Whose {
        Whose(std::ptr::from_ref(part).addr())
    }
}

thread_local! {
    /// What this thread does, the innermost last, each with the releaser for which it does it.
    static DOING: RefCell<Vec<(Whose, Doing)>> = const { RefCell::new(Vec::new()) };
}

/// Returns whether this thread does this for a releaser.
pub(crate) fn is_here(whose: Whose, doing: Doing) -> bool {
    // A thread that ends has no list any more.
    DOING.try_with(|list| list.borrow().contains(&(whose, doing))).unwrap_or(false)
}

/// A mark on this thread. Dropping it, also in a panic, ends it.
pub(crate) struct Mark {
    /// Whether it is on the list, which a thread that ends has not.
    is_set: bool,
    /// It stays on its thread.
    _stays: PhantomData<*const ()>,
}

impl Mark {
    pub(crate) fn new(whose: Whose, doing: Doing) -> Mark {
        let is_set = DOING.try_with(|list| list.borrow_mut().push((whose, doing))).is_ok();
        Mark { is_set, _stays: PhantomData }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.is_set {
            let _ = DOING.try_with(|list| list.borrow_mut().pop());
        }
    }
}
