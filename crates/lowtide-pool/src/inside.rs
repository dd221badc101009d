//! Fences that call the pool which asks them. Such a call would ask the fence again, without end, or wait
//! for the sleep that waits for the fence. It is recognised by its thread and refused.

use std::cell::RefCell;
use std::sync::Arc;

use crate::fence::{Fence, StreamId};
use crate::monitor::Monitor;
use crate::pool::Pool;
use crate::{Error, Result};

thread_local! {
    /// The addresses of the monitors whose pools ask their fence on this thread, the innermost last.
    static FENCES_HERE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks that a pool asks its fence on this thread. Dropping it, also in a panic, ends that.
struct Asking;

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = FENCES_HERE.try_with(|pools| pools.borrow_mut().pop());
    }
}

/// Refuses if the fence of the pool with this monitor runs on this thread.
pub(crate) fn check_outside_fence<T>(monitor: &Monitor<T>) -> Result<()> {
    let address = std::ptr::from_ref(monitor).addr();
    let is_inside = FENCES_HERE.try_with(|pools| pools.borrow().contains(&address));
    if is_inside.unwrap_or(false) { Err(Error::InsideFence) } else { Ok(()) }
}

impl Pool {
    /// Asks the fence whether a stream has passed. A panic counts as `false`.
    pub(crate) fn ask_fence(&self, fence: &Arc<dyn Fence>, stream: StreamId) -> bool {
        let ask = std::panic::AssertUnwindSafe(|| fence.has_passed(stream));
        let asking = self.asking();
        let has_passed = std::panic::catch_unwind(ask).unwrap_or(false);
        drop(asking);
        has_passed
    }

    /// Waits until the fence says that a stream has passed.
    pub(crate) fn wait_for_fence(&self, fence: &Arc<dyn Fence>, stream: StreamId) -> Result<()> {
        let _asking = self.asking();
        Ok(fence.wait(stream)?)
    }

    // `None` in a thread that ends, which has no list any more.
    fn asking(&self) -> Option<Asking> {
        let address = std::ptr::from_ref(&self.shared.monitor).addr();
        let mark = |pools: &RefCell<Vec<usize>>| pools.borrow_mut().push(address);
        FENCES_HERE.try_with(mark).ok().map(|()| Asking)
    }
}
