//! What this thread has to do with gates: the passes that it holds, the closed gates that it is inside
//! of because it runs a part of the release or pause that closed them, and the gates whose memory it
//! wakes.
//!
//! A thread that waits for a gate which only it can free would wait for ever. These lists tell. They
//! are per thread, so that a pass costs no lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::IS_MODEL;

/// The identity of a gate, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GateId(u64);

impl Default for GateId {
    fn default() -> GateId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        GateId(NEXT.fetch_add(1, Relaxed))
    }
}

struct Ties {
    /// The gates of borrowed passes. One that became owned may be anywhere, and is not here.
    passes: RefCell<Vec<GateId>>,
    inside: RefCell<Vec<GateId>>,
    waking: RefCell<Vec<GateId>>,
}

thread_local! {
    static TIES: Ties = const {
        Ties {
            passes: RefCell::new(Vec::new()),
            inside: RefCell::new(Vec::new()),
            waking: RefCell::new(Vec::new()),
        }
    };
}

/// Records a pass of this thread. Does nothing while the thread ends: it begins no release then.
pub(super) fn hold(gate: GateId) {
    if !IS_MODEL {
        let _ = TIES.try_with(|ties| ties.passes.borrow_mut().push(gate));
    }
}

/// Forgets a pass of this thread.
pub(super) fn let_go(gate: GateId) {
    let _ = TIES.try_with(|ties| remove(&mut ties.passes.borrow_mut(), gate));
}

fn remove(list: &mut Vec<GateId>, gate: GateId) {
    if let Some(at) = list.iter().rposition(|known| *known == gate) {
        list.remove(at);
    }
}

/// Returns whether this thread holds a borrowed pass of the gate.
pub(super) fn holds(gate: GateId) -> bool {
    TIES.try_with(|ties| ties.passes.borrow().contains(&gate)).unwrap_or(false)
}

/// Returns whether this thread runs a part of the release or pause that closed the gate.
pub(super) fn is_inside(gate: GateId) -> bool {
    TIES.try_with(|ties| ties.inside.borrow().contains(&gate)).unwrap_or(false)
}

/// Marks that this thread runs a part of the release or pause that closed a gate. Dropped on the same
/// thread.
#[derive(Debug)]
pub(crate) struct Inside {
    gate: GateId,
}

impl Inside {
    pub(super) fn new(gate: GateId) -> Inside {
        // A thread that ends begins no release.
        let _ = TIES.try_with(|ties| ties.inside.borrow_mut().push(gate));
        Inside { gate }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = TIES.try_with(|ties| remove(&mut ties.inside.borrow_mut(), self.gate));
    }
}

/// Marks that this thread wakes the memory behind a gate. Dropped on the same thread.
#[derive(Debug)]
pub(super) struct Waking {
    gate: GateId,
}

impl Waking {
    /// Returns `None` if this thread does so already.
    pub(super) fn new(gate: GateId) -> Option<Waking> {
        if IS_MODEL {
            return Some(Waking { gate });
        }
        let begin = |ties: &Ties| {
            let mut waking = ties.waking.borrow_mut();
            let is_waking = waking.contains(&gate);
            (!is_waking).then(|| waking.push(gate))
        };
        TIES.try_with(begin).unwrap_or(Some(())).map(|()| Waking { gate })
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        let _ = TIES.try_with(|ties| remove(&mut ties.waking.borrow_mut(), self.gate));
    }
}
