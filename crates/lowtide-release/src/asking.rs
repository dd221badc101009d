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

thread_local! {
    /// What this thread does, the innermost last, each with the address of the part of a releaser that
    /// does it. It stays where it is meanwhile, because it is in use.
    static DOING: RefCell<Vec<(usize, Doing)>> = const { RefCell::new(Vec::new()) };
}

/// Returns whether this thread does this for a part of a releaser.
pub(crate) fn is_here<P>(part: &P, doing: Doing) -> bool {
    let mark = (address(part), doing);
    // A thread that ends has no list any more.
    DOING.try_with(|list| list.borrow().contains(&mark)).unwrap_or(false)
}

fn address<P>(part: &P) -> usize {
    std::ptr::from_ref(part).addr()
}

/// A mark on this thread. Dropping it, also in a panic, ends it.
pub(crate) struct Mark {
    /// Whether it is on the list, which a thread that ends has not.
    is_set: bool,
    /// It stays on its thread.
    _stays: PhantomData<*const ()>,
}

impl Mark {
    pub(crate) fn new<P>(part: &P, doing: Doing) -> Mark {
        let mark = (address(part), doing);
        let is_set = DOING.try_with(|list| list.borrow_mut().push(mark)).is_ok();
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
