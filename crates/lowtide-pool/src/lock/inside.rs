//! Callbacks that call the pool which asks them: fences, limits, and callbacks that free memory. Such a call
//! would ask again, without end, or wait for the operation that asks. It is recognised by its thread and
//! refused.

use lowtide_types::{ThreadMark, ThreadMarks};

use crate::{Error, Result};

/// A callback that a pool runs in the middle of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callback {
    Fence,
    Limit,
    Pressure,
}

/// The address of a pool's monitor, or of its list of callbacks, which stay where they are while the pool is in
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolAddress(usize);

impl PoolAddress {
    pub(crate) fn of<M>(monitor: &M) -> PoolAddress {
        PoolAddress(std::ptr::from_ref(monitor).addr())
    }
}

thread_local! {
    /// The callbacks that run on this thread.
    static HERE: ThreadMarks<(PoolAddress, Callback)> = const { ThreadMarks::new() };
}

/// Marks that a callback of a pool runs on this thread. Dropping it, also in a panic, ends that.
pub(crate) struct Inside {
    _mark: ThreadMark<(PoolAddress, Callback)>,
}

impl Inside {
    pub(crate) fn new(pool: PoolAddress, callback: Callback) -> Inside {
        Inside { _mark: ThreadMarks::set(&HERE, (pool, callback)) }
    }

    /// Marks it, unless such a callback of the same pool runs on this thread already.
    pub(crate) fn once<M>(pool: &M, callback: Callback) -> Option<Inside> {
        let mark = ThreadMarks::set_once(&HERE, (PoolAddress::of(pool), callback));
        mark.map(|mark| Inside { _mark: mark })
    }

    /// Marks that the pool with this monitor asks its fence.
    pub(crate) fn fence<M>(monitor: &M) -> Inside {
        Inside::new(PoolAddress::of(monitor), Callback::Fence)
    }
}

fn is_inside<M>(monitor: &M, callback: Callback) -> bool {
    ThreadMarks::has(&HERE, &(PoolAddress::of(monitor), callback))
}

/// Refuses if the fence of the pool with this monitor runs on this thread.
pub(crate) fn check_outside_fence<M>(monitor: &M) -> Result<()> {
    if is_inside(monitor, Callback::Fence) { Err(Error::InsideFence) } else { Ok(()) }
}

/// Refuses if the fence or a limit of the pool with this monitor runs on this thread: what the caller is
/// about to wait for may wait for that.
pub(crate) fn check_may_wait<M>(monitor: &M) -> Result<()> {
    check_outside_fence(monitor)?;
    if is_inside(monitor, Callback::Limit) { Err(Error::InsideLimit) } else { Ok(()) }
}
