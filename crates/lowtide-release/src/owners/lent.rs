//! References that are lent, each recorded by its path.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::shared::Shared;
use super::table::{Erased, Reference, ValueId};

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
