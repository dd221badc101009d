//! The table behind its lock, shared by the registry and by every reference that it lends.

use std::sync::{Condvar, MutexGuard};
use std::thread;

use super::table::OwnerTable;
use crate::fork::{self, ProcessMutex};
use crate::sync::unpoisoned;

#[derive(Default)]
pub(super) struct Shared {
    table: ProcessMutex<OwnerTable>,
    /// A shutdown has ended.
    done: Condvar,
}

impl Shared {
    /// Locks the table; `None` in a forked child.
    pub(super) fn table(&self) -> Option<MutexGuard<'_, OwnerTable>> {
        self.table.lock()
    }

    /// Locks the table for a call that has to change it.
    ///
    /// # Panics
    /// In a forked child, because the value that the caller registers would be lost.
    pub(super) fn own_table(&self) -> MutexGuard<'_, OwnerTable> {
        self.table().unwrap_or_else(|| panic!("{}", fork::refusal("registry of owners")))
    }

    /// Waits for its turn to shut down. `None` if this very thread is shutting down, and in a forked
    /// child.
    pub(super) fn begin(&self) -> Option<Work<'_>> {
        let me = thread::current().id();
        let mut table = self.table()?;
        while let Some(other) = table.at_work {
            if other == me {
                return None;
            }
            table = unpoisoned(self.done.wait(table));
        }
        table.at_work = Some(me);
        Some(Work(self))
    }
}

/// A shutdown that runs on this thread. Dropping it ends it.
pub(super) struct Work<'a>(&'a Shared);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let Some(mut table) = self.0.table() else { return };
        table.at_work = None;
        drop(table);
        self.0.done.notify_all();
    }
}
