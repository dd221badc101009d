//! References that are lent, each recorded by its path, and the lock of the table that records them.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, MutexGuard};
use std::thread;

use super::table::{Erased, OwnerTable, Reference, ValueId};
use crate::fork::{self, ProcessMutex};
use crate::sync::unpoisoned;

/// A reference to an owner's value. Its path is recorded for as long as it exists.
pub struct Lent<T: ?Sized> {
    // Dropped in this order: the record stays until a drop of the value has returned, or panicked.
    value: Arc<T>,
    record: Record,
}

impl Lent<Erased> {
    pub(super) fn new(shared: &Arc<Shared>, lent: Reference, path: &Arc<str>) -> Lent<Erased> {
        let (id, value) = lent;
        let record = Record { shared: Arc::clone(shared), value: id, path: path.clone() };
        Lent { value, record }
    }

    pub(super) fn downcast<T: Send + Sync + 'static>(self) -> Lent<T> {
        let Lent { value, record } = self;
        let value = value.downcast().unwrap_or_else(|_| unreachable!("an entry keeps its type"));
        Lent { value, record }
    }
}

impl<T> Lent<T> {
    /// Returns a reference that is not recorded.
    pub(super) fn share(&self) -> Arc<T> {
        Arc::clone(&self.value)
    }
}

impl<T: ?Sized> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({})", self.record.path)
    }
}

/// The record of a reference. Dropping it removes the record.
struct Record {
    shared: Arc<Shared>,
    value: ValueId,
    path: Arc<str>,
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(mut table) = self.shared.table() {
            table.remove_path(self.value, &self.path);
        }
    }
}

/// The table behind its lock, shared by the registry and by every reference that it lends.
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
