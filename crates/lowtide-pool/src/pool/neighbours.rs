//! Neighbours: the pools of this process, each of which helps the others on its device. They are known weakly, so that
//! none lives longer for it.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread;

/// The number of times that the lock is tried. It is held for moments, except in a child that was forked in such a
/// moment: there it is never released.
const TRIES: usize = 10_000;

/// All that are alive.
pub(crate) struct Neighbours<T>(Mutex<Vec<Weak<T>>>);

impl<T> Neighbours<T> {
    pub(crate) const fn new() -> Neighbours<T> {
        Neighbours(Mutex::new(Vec::new()))
    }

    /// Adds a new one, unless the lock cannot be had.
    pub(crate) fn add(&self, new: &Arc<T>) {
        let Some(mut all) = self.all() else { return };
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(new));
    }

    /// Returns all but one; none if the lock cannot be had.
    pub(crate) fn of(&self, one: &Arc<T>) -> Vec<Arc<T>> {
        let Some(all) = self.all() else { return Vec::new() };
        let known = all.clone();
        drop(all);
        let others = known.iter().filter_map(Weak::upgrade);
        others.filter(|other| !Arc::ptr_eq(other, one)).collect()
    }

    fn all(&self) -> Option<MutexGuard<'_, Vec<Weak<T>>>> {
        let try_lock = |_| match self.0.try_lock() {
            Ok(all) => Some(all),
            // A list of which one entry changes at a time.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                thread::yield_now();
                None
            }
        };
        (0..TRIES).find_map(try_lock)
    }
}
