//! The table behind its lock, shared by the registry and by every reference that it lends.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::table::OwnerTable;

#[derive(Default)]
pub(super) struct Shared {
    table: Mutex<OwnerTable>,
    /// A shutdown has ended.
    done: Condvar,
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, OwnerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn to shut down. `None` if this very thread is shutting down.
    pub(super) fn begin(&self) -> Option<Work<'_>> {
        let me = thread::current().id();
        let mut table = self.table();
        while let Some(other) = table.at_work {
            if other == me {
                return None;
            }
            table = self.done.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table.at_work = Some(me);
        Some(Work(self))
    }
}

/// A shutdown that runs on this thread. Dropping it ends it.
pub(super) struct Work<'a>(&'a Shared);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.table().at_work = None;
        self.0.done.notify_all();
    }
}
