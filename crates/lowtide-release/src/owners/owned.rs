//! The handle of a component to what it owns.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use lowtide_types::Bytes;

use super::lent::Lent;
use super::registry::Owners;
use super::table::{CallSite, EntryId, Erased, IN_USE};

/// An entry of the registry, with a value until a shutdown takes it out.
///
/// Keep it where the value itself would be. Dropping it drops the value and the entry.
///
/// ```
/// use lowtide_release::Owners;
///
/// let owners = Owners::new();
/// let model = owners.own("runner.model", vec![1.0, 2.0]);
/// assert_eq!(model.with(|weights| weights.len()), Some(2));
///
/// owners.shutdown();
/// assert_eq!(model.with(|weights| weights.len()), None);
/// model.put(vec![3.0]); // loaded again
/// assert_eq!(model.with(|weights| weights.len()), Some(1));
/// ```
#[must_use = "the value is dropped with this"]
pub struct Owned<T> {
    owners: Owners,
    entry: EntryId,
    name: Arc<str>,
    value: PhantomData<fn() -> T>,
}

impl Owners {
    /// Registers what a component owns. A shutdown drops it, or the [`Owned`] does.
    ///
    /// # Panics
    /// In a forked child that inherited the registry.
    pub fn own<T: Send + Sync + 'static>(&self, name: &str, value: T) -> Owned<T> {
        let owned = self.declare(name);
        owned.put(value);
        owned
    }

    /// Registers an entry without a value; [`Owned::put`] fills it.
    ///
    /// # Panics
    /// In a forked child that inherited the registry.
    pub fn declare<T: Send + Sync + 'static>(&self, name: &str) -> Owned<T> {
        let name: Arc<str> = name.into();
        let entry = self.shared().own_table().declare(name.clone());
        Owned { owners: self.clone(), entry, name, value: PhantomData }
    }
}

impl<T: Send + Sync + 'static> Owned<T> {
    /// Says that this owner uses another one, so that it is dropped first: `.borrows(&model)`, or
    /// `.borrows("runner.model")`, which may be registered later.
    pub fn borrows(self, other: impl AsRef<str>) -> Owned<T> {
        // Before the lock: it is code of the caller.
        let name = other.as_ref().into();
        if let Some(mut table) = self.owners.table() {
            table.add_borrow(self.entry, name);
        }
        self
    }

    /// Sets a function that measures the memory that is freed with the value. It is called for a plan
    /// and before a drop. If it panics, the size is unknown.
    pub fn bytes(self, measure: impl Fn(&T) -> Bytes + Send + Sync + 'static) -> Owned<T> {
        let measure = Arc::new(move |value: &Erased| {
            let value = value.downcast_ref();
            measure(value.unwrap_or_else(|| unreachable!("an entry keeps its type")))
        });
        let before = self.owners.table().map(|mut table| table.set_measure(self.entry, measure));
        drop(before);
        self
    }

    /// Uses the value for a moment. `None` if there is none. A shutdown does not wait: a value that it
    /// takes out meanwhile is dropped when `action` returns, and until then the holder `(in use)` is
    /// named.
    pub fn with<R>(&self, action: impl FnOnce(&T) -> R) -> Option<R> {
        self.lend_by(&IN_USE, None).map(|value| action(&value))
    }

    /// Returns a reference to keep, recorded under the path where it is kept. `None` if there is no
    /// value.
    ///
    /// The path is recorded until the reference is dropped, and names the holder after a shutdown. If
    /// the path is below another owner's name, that owner borrows this one: `runner.pooling` is dropped
    /// before the value that was lent to `runner.pooling.model`.
    ///
    /// The place of the call is recorded, too: "held since src/c.rs:44".
    #[track_caller]
    pub fn lend(&self, path: &str) -> Option<Lent<T>> {
        self.lend_by(&path.into(), Some(Location::caller()))
    }

    fn lend_by(&self, path: &Arc<str>, since: Option<CallSite>) -> Option<Lent<T>> {
        let lent = self.owners.table()?.lend(self.entry, path, since)?;
        Some(Lent::new(self.owners.shared(), lent, path).downcast())
    }

    /// Returns a reference for code that does not know owners. Reports count it as `(unnamed)`, with
    /// the places where such references were taken.
    #[track_caller]
    pub fn share(&self) -> Option<Arc<T>> {
        self.owners.table()?.note_shared(self.entry, Location::caller());
        Some(self.lend_by(&IN_USE, None)?.share())
    }

    /// Puts a value in the entry. The value that was there is dropped.
    ///
    /// # Panics
    /// In a forked child that inherited the registry.
    pub fn put(&self, value: T) {
        self.owners.put(self.entry, Arc::new(value));
    }

    /// Returns the name that the owner was registered with.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> AsRef<str> for Owned<T> {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owned({})", self.name)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.owners.leave(self.entry);
    }
}
