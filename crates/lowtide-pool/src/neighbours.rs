//! Neighbours: the other pools on the same device. What they cache makes room before a pool reports out of memory.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread;

use lowtide_device::Bytes;

use crate::pool::{Pool, Shared};
use crate::pressure::{Pressure, PressureAnswer};

/// The pools of this process.
static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The number of times that the lock is tried. It is held for moments, except in a child that was forked in such a
/// moment: there it is never released.
const TRIES: usize = 10_000;

fn pools() -> Option<MutexGuard<'static, Vec<Weak<Shared>>>> {
    let try_lock = |_| match POOLS.try_lock() {
        Ok(pools) => Some(pools),
        // A list of which one entry changes at a time.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            thread::yield_now();
            None
        }
    };
    (0..TRIES).find_map(try_lock)
}

/// Lets a new pool help its neighbours.
pub(crate) fn add(pool: &Pool) {
    let Some(mut pools) = pools() else { return };
    pools.retain(|known| known.strong_count() > 0);
    pools.push(Arc::downgrade(&pool.shared));
}

impl Pool {
    /// Asks for memory before a request is refused: first the pools on the same device, which cache some, then the
    /// callbacks. No lock of a pool is held meanwhile.
    pub(crate) fn ask_for_memory(&self, pressure: &Pressure) -> PressureAnswer {
        let trimmed = |neighbour: &Pool| match neighbour.trim(Bytes::ZERO) {
            Ok(given_back) => given_back > Bytes::ZERO,
            Err(error) => {
                tracing::debug!(%error, "a neighbour gives nothing back");
                false
            }
        };
        let given_back = self.neighbours().iter().filter(|neighbour| trimmed(neighbour)).count();
        if given_back > 0 { PressureAnswer::Retry } else { self.shared.callbacks.ask(pressure) }
    }

    fn neighbours(&self) -> Vec<Pool> {
        let Some(pools) = pools() else { return Vec::new() };
        let known = pools.clone();
        drop(pools);
        let others = known.iter().filter_map(Weak::upgrade);
        let others = others.filter(|other| !Arc::ptr_eq(other, &self.shared));
        let others = others.filter(|other| other.device.is(&self.shared.device));
        others.map(|shared| Pool { shared }).collect()
    }
}
