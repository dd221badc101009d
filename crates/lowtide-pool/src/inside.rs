//! Fences that call the pool which asks them. Such a call would ask the fence again, without end, or wait
//! for the sleep that waits for the fence. It is recognised by its thread and refused.

use std::cell::RefCell;

use crate::{Error, Result};

thread_local! {
    /// The addresses of the monitors whose pools ask their fence on this thread, the innermost last.
    static FENCES_HERE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks that a pool asks its fence on this thread. Dropping it, also in a panic, ends that.
pub(crate) struct Asking;

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = FENCES_HERE.try_with(|pools| pools.borrow_mut().pop());
    }
}

/// Marks that the pool with this monitor asks its fence; `None` in a thread that ends, which has no
/// list any more.
pub(crate) fn begin_asking<M>(monitor: &M) -> Option<Asking> {
    let address = std::ptr::from_ref(monitor).addr();
    let mark = |pools: &RefCell<Vec<usize>>| pools.borrow_mut().push(address);
    FENCES_HERE.try_with(mark).ok().map(|()| Asking)
}

/// Refuses if the fence of the pool with this monitor runs on this thread.
pub(crate) fn check_outside_fence<M>(monitor: &M) -> Result<()> {
    let address = std::ptr::from_ref(monitor).addr();
    let is_inside = FENCES_HERE.try_with(|pools| pools.borrow().contains(&address));
    if is_inside.unwrap_or(false) { Err(Error::InsideFence) } else { Ok(()) }
}
