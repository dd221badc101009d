//! Which context a thread works in: a stack per thread.

use std::cell::RefCell;

use super::code::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT};
use super::objects::{ContextId, Current, Region, RegionKind};
use super::pointers::CallResult;
use super::settings::MAX_DEVICES;
use super::tables::Tables;

/// The handle of device 0's primary context; the others follow.
const FIRST_PRIMARY: u64 = 0xc0de_0000;
/// Handles of contexts by `cuCtxCreate` come after this.
const FIRST_CREATED: u64 = 0xc0de_1000;

thread_local! {
    /// The contexts of this thread; the last is current.
    static STACK: RefCell<Vec<ContextId>> = const { RefCell::new(Vec::new()) };
}

/// Returns how many contexts this thread has stacked.
pub(super) fn depth() -> usize {
    STACK.with_borrow(Vec::len)
}

/// Returns the context on top of this thread's stack.
pub(super) fn top() -> Option<ContextId> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// Puts a context on this thread's stack.
pub(super) fn push(context: ContextId) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

/// Takes the top off this thread's stack.
pub(super) fn pop() -> Option<ContextId> {
    STACK.with_borrow_mut(Vec::pop)
}

/// Returns the primary context of a device, whether it lives or not.
pub(super) fn primary(device: usize) -> ContextId {
    ContextId(FIRST_PRIMARY + device as u64)
}

impl ContextId {
    /// Returns the device of a primary context; `None` for any other.
    pub(super) fn primary_of(self) -> Option<usize> {
        (0..MAX_DEVICES).find(|device| primary(*device) == self)
    }
}

impl Tables {
    /// Returns the current context and its device. The context must be alive and not lost.
    pub(super) fn healthy(&self) -> CallResult<Current> {
        let context = top().ok_or(INVALID_CONTEXT)?;
        let device = self.contexts.get(&context).ok_or(CONTEXT_IS_DESTROYED)?.device;
        self.lost.map_or(Ok(Current { context, device }), Err)
    }

    /// Returns the context of plain memory, of which none has to be current, or the current one.
    pub(super) fn healthy_owner(&self, base: u64) -> CallResult<ContextId> {
        match self.regions.get(&base) {
            Some(Region { kind: RegionKind::Plain(owner, _), .. }) => {
                self.lost.map_or(Ok(owner.context), Err)
            }
            _ => self.healthy().map(|current| current.context),
        }
    }

    /// Returns a handle for a context by `cuCtxCreate`.
    pub(super) fn new_context_id(&mut self) -> ContextId {
        ContextId(FIRST_CREATED + 16 * self.new_id())
    }
}
