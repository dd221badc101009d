//! What a caller has: a handle to what it owns, and references that others were lent.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use lowtide_device::Bytes;

use super::books::{Erased, PlaceId, Reference, ValueId};
use super::{IN_USE, Owners};

/// A place in the registry, and the value in it until a shutdown takes it out.
///
/// Keep it where the value itself would be. When it is dropped, the value goes, and the place.
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
#[must_use = "the value goes when this is dropped"]
pub struct Owned<T> {
    owners: Owners,
    place: PlaceId,
    name: Arc<str>,
    value: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> Owned<T> {
    pub(super) fn new(owners: Owners, place: PlaceId, name: Arc<str>) -> Owned<T> {
        Owned { owners, place, name, value: PhantomData }
    }

    /// Says that this one uses another, so that it goes first: `.borrows(&model)`, or
    /// `.borrows("runner.model")`, which may be registered later.
    pub fn borrows(self, other: impl AsRef<str>) -> Owned<T> {
        self.owners.books().add_borrow(self.place, other.as_ref().into());
        self
    }

    /// Says what goes when the value goes. It is asked for a plan and before a drop; where it
    /// panics, that is not known.
    pub fn bytes(self, measure: impl Fn(&T) -> Bytes + Send + Sync + 'static) -> Owned<T> {
        let measure = Arc::new(move |value: &Erased| {
            let value = value.downcast_ref();
            measure(value.unwrap_or_else(|| unreachable!("a place keeps its type")))
        });
        let before = self.owners.books().set_measure(self.place, measure);
        drop(before);
        self
    }

    /// Uses the value for a moment. `None` where there is none. A shutdown does not wait: what it
    /// takes out meanwhile goes when `action` has returned, and until then the holder `(in use)` is
    /// named.
    pub fn with<R>(&self, action: impl FnOnce(&T) -> R) -> Option<R> {
        self.lend_by(&IN_USE).map(|value| action(&value))
    }

    /// A reference to keep, under the path where it is kept. `None` where there is no value.
    ///
    /// The path is on record until the reference is dropped, and who holds the value after a
    /// shutdown is named by it. Where the path is below another owner's name, that owner borrows
    /// this one: `runner.pooling` goes before what was lent to `runner.pooling.model`.
    pub fn lend(&self, path: &str) -> Option<Lent<T>> {
        self.lend_by(&path.into())
    }

    fn lend_by(&self, path: &Arc<str>) -> Option<Lent<T>> {
        let lent = self.owners.books().lend(self.place, path)?;
        let Lent { value, record } = Lent::new(&self.owners, lent, path);
        let value = value.downcast().unwrap_or_else(|_| unreachable!("a place keeps its type"));
        Some(Lent { value, record })
    }

    /// A reference for code that knows nothing of owners. Reports can only count it, as
    /// `(unnamed)`.
    pub fn share(&self) -> Option<Arc<T>> {
        Some(self.lend_by(&IN_USE)?.value.clone())
    }

    /// Puts a value in the place. What was there goes.
    pub fn put(&self, value: T) {
        self.owners.put(self.place, Arc::new(value));
    }

    /// The name it was registered with.
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
        self.owners.leave(self.place);
    }
}

/// A reference to a value, on record by its path for as long as it lives.
pub struct Lent<T: ?Sized> {
    // In this order: the record stays until a drop of the value has returned, or panicked.
    value: Arc<T>,
    record: Record,
}

impl Lent<Erased> {
    pub(super) fn new(owners: &Owners, lent: Reference, path: &Arc<str>) -> Lent<Erased> {
        let (id, value) = lent;
        let record = Record { owners: owners.clone(), value: id, path: path.clone() };
        Lent { value, record }
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

/// While it lives, a reference is on record.
struct Record {
    owners: Owners,
    value: ValueId,
    path: Arc<str>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.owners.books().remove_path(self.value, &self.path);
    }
}
