//! Owners: who should let go, in which order, and who still holds.
//!
//! An engine that is told to shut down has to let go of a dozen things that refer to each other,
//! while its caller keeps the engine. Dropped in the wrong order, or with one reference forgotten in
//! a wrapper, the memory stays and nobody says why. So each component registers what it owns and
//! says what it borrows. A shutdown then drops borrowers before what they borrow, and names, by path
//! and count, whoever still holds something afterwards.

mod books;
mod order;
mod owned;
mod paths;
mod report;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use lowtide_device::Bytes;

use books::{Books, Erased, PlaceId, ValueId};
pub use owned::{Lent, Owned};
pub use paths::{HeldPath, NewPaths, Paths};
pub use report::{Cycle, DropOutcome, Dropped, Plan, Planned, Shutdown};

use crate::Holder;

/// The path of references that nobody named.
const UNNAMED: &str = "(unnamed)";

/// The path of references that last for one call.
static IN_USE: LazyLock<Arc<str>> = LazyLock::new(|| "(in use)".into());

/// The path of the registry's own reference, from the moment a value is taken out.
static BEING_DROPPED: LazyLock<Arc<str>> = LazyLock::new(|| "(being dropped)".into());

/// The registry: what is owned, what borrows it, who holds it. Cheap to clone.
///
/// Names are paths, as a person would write them: `runner.model`. Two owners may have the same one,
/// as two runners in a process do.
///
/// No lock is held while a caller's code runs. So a `Drop` may call back into the registry, and one
/// that panics is reported by name and stops nothing.
///
/// ```
/// use lowtide_device::Bytes;
/// use lowtide_release::{Lent, Owned, Owners};
///
/// struct Model { weights: Vec<u8> }
/// struct Pooling { model: Lent<Model> }
/// struct Runner { model: Owned<Model>, pooling: Owned<Pooling>, speculator: Owned<Vec<u8>> }
///
/// let owners = Owners::new();
/// let model = owners
///     .own("runner.model", Model { weights: vec![0; 1 << 20] })
///     .bytes(|model| Bytes(model.weights.len() as u64));
/// // Lent to a path below `runner.pooling`: so that owner borrows the model, and goes first.
/// let lent = model.lend("runner.pooling.model").unwrap();
/// let pooling = owners.own("runner.pooling", Pooling { model: lent });
/// let speculator = owners.declare("runner.speculator"); // may stay empty
/// let runner = Runner { model, pooling, speculator };
///
/// let forgotten = runner.model.lend("sampler.model");
/// let shutdown = owners.shutdown();
/// assert_eq!(
///     shutdown.to_string(),
///     "1. runner.pooling: gone\n\
///      2. runner.model, 1.0 MiB: still held\n\
///      sampler.model holds runner.model: 1 reference, 1.0 MiB\n\
///      empty: runner.speculator\n"
/// );
/// assert!(runner.model.with(|_| ()).is_none()); // the runner is still here, and empty
///
/// drop(forgotten);
/// assert!(owners.shutdown().is_clean());
/// ```
#[derive(Clone, Default)]
pub struct Owners {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    books: Mutex<Books>,
    /// A shutdown is done.
    done: Condvar,
}

impl Owners {
    /// A registry of its own.
    pub fn new() -> Owners {
        Owners::default()
    }

    /// Registers what a component owns. It goes in a shutdown, or when the [`Owned`] is dropped.
    pub fn own<T: Send + Sync + 'static>(&self, name: &str, value: T) -> Owned<T> {
        let owned = self.declare(name);
        owned.put(value);
        owned
    }

    /// Registers a place that may stay empty; [`Owned::put`] fills it.
    pub fn declare<T: Send + Sync + 'static>(&self, name: &str) -> Owned<T> {
        let name: Arc<str> = name.into();
        let place = self.books().declare(name.clone());
        Owned::new(self.clone(), place, name)
    }

    /// What a shutdown would drop now, in which order.
    pub fn plan(&self) -> Plan {
        self.plan_with_values().0
    }

    fn plan_with_values(&self) -> (Plan, Vec<ValueId>) {
        let (mut plan, values) = self.books().plan();
        for (step, value) in plan.steps.iter_mut().zip(&values) {
            step.bytes = self.measure(*value);
        }
        (plan, values)
    }

    /// Takes every value out of its place and drops it: borrowers before what they borrow,
    /// otherwise last registered first. Then says who still holds one.
    ///
    /// Safe after a partial start, and safe to call again: what survived an earlier shutdown is
    /// named for as long as it lives. What is put in a place while a shutdown runs stays there.
    ///
    /// Of two threads one does the work; the other waits for it, then takes what is left. Called
    /// from a `Drop` that a shutdown runs, it does nothing and says who holds what at that moment.
    /// Only a `Drop` that waits for another thread's shutdown would wait for itself.
    pub fn shutdown(&self) -> Shutdown {
        let Some(_work) = self.begin() else {
            return Shutdown { holders: self.holders(), ..Shutdown::default() };
        };
        let (plan, values) = self.plan_with_values();
        let panics: Vec<Option<String>> = values.iter().map(|&value| self.let_go(value)).collect();

        let mut books = self.books();
        let mut dropped = Vec::with_capacity(values.len());
        for ((step, value), panic) in plan.steps.into_iter().zip(values).zip(panics) {
            let outcome = match panic {
                Some(message) => DropOutcome::Panicked { message },
                None if books.is_held(value) => DropOutcome::Held,
                None => DropOutcome::Gone,
            };
            dropped.push(Dropped { name: step.name, bytes: step.bytes, outcome });
        }
        Shutdown { dropped, empty: plan.empty, holders: books.holders(), cycles: plan.cycles }
    }

    /// Who holds, right now, what was dropped by a shutdown, with its [`Owned`], or for another
    /// value in its place.
    pub fn holders(&self) -> Vec<Holder> {
        self.books().holders()
    }

    /// By which paths owners are held, right now: what was lent, what is borrowed, and how many
    /// references there are that nobody named.
    pub fn paths(&self) -> Paths {
        self.books().paths()
    }

    /// Accepts the paths there are now, and no others, for [`Owners::audit`].
    ///
    /// ```
    /// use lowtide_release::Owners;
    ///
    /// let owners = Owners::new();
    /// let model = owners.own("runner.model", "weights");
    /// let known = model.lend("runner.pooling.model");
    /// owners.accept();
    /// assert!(owners.audit().is_ok());
    ///
    /// let new = model.lend("metrics.last_model");
    /// let error = owners.audit().unwrap_err();
    /// assert!(error.to_string().contains("metrics.last_model -> runner.model"));
    /// ```
    pub fn accept(&self) {
        let mut books = self.books();
        books.accepted = books.paths();
    }

    /// Accepts these paths, and no others: from a file, for example.
    pub fn accept_these(&self, paths: Paths) {
        self.books().accepted = paths;
    }

    /// Finds paths that were not accepted. Accepted ones that are gone are fine.
    ///
    /// # Errors
    /// [`NewPaths`], with each of them.
    pub fn audit(&self) -> Result<(), NewPaths> {
        let books = self.books();
        let paths = books.paths().beyond(&books.accepted);
        if paths.is_empty() { Ok(()) } else { Err(NewPaths { paths }) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.shared.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn to shut down. `None` where this very thread is at it.
    fn begin(&self) -> Option<Work<'_>> {
        let me = thread::current().id();
        let mut books = self.books();
        while let Some(other) = books.at_work {
            if other == me {
                return None;
            }
            books = self.shared.done.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
        books.at_work = Some(me);
        Some(Work(self))
    }

    /// Takes a value out of its place and drops it. What the panic said, if it did.
    fn let_go(&self, value: ValueId) -> Option<String> {
        let taken = self.books().take(value)?;
        let taken = Lent::new(self, taken, &BEING_DROPPED);
        catch(move || drop(taken)).err()
    }

    /// Asks what goes with a value, and keeps the answer for when somebody holds it.
    fn measure(&self, value: ValueId) -> Option<Bytes> {
        let (lent, measure) = self.books().lend_to_measure(value)?;
        let lent = Lent::new(self, lent, &IN_USE);
        // The last reference may be this one by the time it falls.
        let bytes = catch(move || measure(&*lent)).ok()?;
        self.books().set_bytes(value, bytes);
        Some(bytes)
    }

    fn put(&self, place: PlaceId, value: Arc<Erased>) {
        self.measure_before_it_goes(place);
        let before = self.books().put(place, value);
        drop(before.map(|taken| Lent::new(self, taken, &BEING_DROPPED)));
    }

    /// An `Owned` goes.
    fn leave(&self, place: PlaceId) {
        self.measure_before_it_goes(place);
        let (place, value) = self.books().remove(place);
        drop(value.map(|taken| Lent::new(self, taken, &BEING_DROPPED)));
        drop(place);
    }

    fn measure_before_it_goes(&self, place: PlaceId) {
        let value = self.books().value_in(place);
        value.map(|value| self.measure(value));
    }
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owners")
    }
}

/// While it lives, this thread is the one that shuts down.
struct Work<'a>(&'a Owners);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.books().at_work = None;
        self.0.shared.done.notify_all();
    }
}

/// Runs a caller's code; what it said where it panicked.
fn catch<R>(action: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|payload| match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(message) => (*message).to_owned(),
            Err(payload) => {
                // It is the caller's too, and could panic again when dropped.
                std::mem::forget(payload);
                "(a panic without a message)".to_owned()
            }
        },
    })
}
