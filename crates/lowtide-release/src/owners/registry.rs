//! The registry itself: plans and runs shutdowns, names holders, audits paths.

use std::sync::{Arc, MutexGuard};

use lowtide_types::{Bytes, Holder, debug_as};

use super::lent::{Lent, Shared};
use super::report::{DropOutcome, Dropped, HeldPath, NewPaths, Paths, Plan, Shutdown};
use super::table::{BEING_DROPPED, EntryId, Erased, IN_USE, OwnerTable, ValueId};
use crate::failure::catch;
use crate::fork;

/// The registry of owners: what is owned, what borrows it, what holds it. Cheap to clone.
///
/// Names are paths, as a person would write them: `runner.model`. Two owners may have the same name,
/// as two runners in a process do.
///
/// No lock is held while a caller's code runs. So a `Drop` may call the registry, and one that panics
/// is reported by name and stops nothing.
///
/// A registry that a forked child inherited belongs to the parent: nothing in it is dropped or lent, and
/// the parent process stands among the holders. A new registry works.
///
/// ```
/// use lowtide_release::{Lent, Owned, Owners};
/// use lowtide_types::Bytes;
///
/// struct Model { weights: Vec<u8> }
/// struct Pooling { model: Lent<Model> }
/// struct Runner { model: Owned<Model>, pooling: Owned<Pooling>, speculator: Owned<Vec<u8>> }
///
/// let owners = Owners::new();
/// let model = owners
///     .own("runner.model", Model { weights: vec![0; 1 << 20] })
///     .bytes(|model| Bytes(model.weights.len() as u64));
/// // Lent to a path below `runner.pooling`: so that owner borrows the model and is dropped first.
/// let lent = model.lend("runner.pooling.model").unwrap();
/// let pooling = owners.own("runner.pooling", Pooling { model: lent });
/// let speculator = owners.declare("runner.speculator"); // may stay empty
/// let runner = Runner { model, pooling, speculator };
///
/// let forgotten = runner.model.lend("sampler.model");
/// let shutdown = owners.shutdown();
/// let text = shutdown.to_string();
/// assert!(text.starts_with("1. runner.pooling: gone\n2. runner.model, 1.0 MiB: still held\n"));
/// // `sampler.model holds runner.model since src/main.rs:23: 1 reference, 1.0 MiB`
/// assert!(text.contains("sampler.model holds runner.model since "));
/// assert!(text.ends_with("1 reference, 1.0 MiB\nempty: runner.speculator"));
/// assert!(runner.model.with(|_| ()).is_none()); // the runner is still here, and empty
///
/// drop(forgotten);
/// assert!(owners.shutdown().is_clean());
/// ```
#[derive(Clone, Default)]
pub struct Owners {
    shared: Arc<Shared>,
}

impl Owners {
    /// Creates an empty registry.
    pub fn new() -> Owners {
        Owners::default()
    }

    /// Returns whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.table().is_none_or(|table| table.is_empty())
    }

    /// Returns whether anything is registered, or was.
    pub(crate) fn has_had_any(&self) -> bool {
        self.table().is_some_and(|table| table.has_had_any())
    }

    /// Returns what a shutdown would drop now, in order.
    pub fn plan(&self) -> Plan {
        self.plan_with_values().0
    }

    fn plan_with_values(&self) -> (Plan, Vec<ValueId>) {
        let Some((mut plan, values)) = self.table().map(|table| table.plan()) else {
            return (Plan::default(), Vec::new());
        };
        for (step, value) in plan.steps.iter_mut().zip(&values) {
            step.bytes = self.measure(*value);
        }
        (plan, values)
    }

    /// Takes every value out of its entry and drops it: borrowers before what they borrow, otherwise
    /// the last registered first. Returns what was dropped and which references hold the rest.
    ///
    /// It is safe after a partial start, and safe to call again: a value that survived an earlier
    /// shutdown is named for as long as it exists. A value that is put in an entry during a shutdown
    /// stays there.
    ///
    /// If two threads call it, one does the work; the other waits for it, then drops what is left.
    /// Called from a `Drop` that a shutdown runs, it does nothing and returns the holders at that
    /// moment. A `Drop` must not wait for another thread's shutdown: it would wait for itself.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown_while(&|| true)
    }

    /// Shuts down like [`Owners::shutdown`], for as long as `go_on` says so before each value.
    pub(crate) fn shutdown_while(&self, go_on: &dyn Fn() -> bool) -> Shutdown {
        let Some(_work) = self.shared.begin() else {
            return Shutdown { holders: self.holders(), ..Shutdown::default() };
        };
        let (plan, values) = self.plan_with_values();
        let tried = values.iter().take_while(|_| go_on());
        let panics: Vec<Option<String>> = tried.map(|&value| self.let_go(value)).collect();

        let Some(mut table) = self.table() else {
            return Shutdown { holders: self.holders(), ..Shutdown::default() };
        };
        let mut dropped = Vec::with_capacity(values.len());
        for ((step, value), panic) in plan.steps.into_iter().zip(values).zip(panics) {
            let outcome = match panic {
                Some(message) => DropOutcome::Panicked { message },
                None if table.is_held(value) => DropOutcome::Held,
                None => DropOutcome::Gone,
            };
            dropped.push(Dropped { name: step.name, bytes: step.bytes, outcome });
        }
        Shutdown { dropped, empty: plan.empty, holders: table.holders(), cycles: plan.cycles }
    }

    /// Returns the references that hold, right now, values that were dropped: by a shutdown, with their
    /// [`Owned`](super::Owned), or for another value in their entry.
    pub fn holders(&self) -> Vec<Holder> {
        self.table().map_or_else(|| vec![the_parent()], |mut table| table.holders())
    }

    /// Returns the paths by which owners are held, right now: what was lent, what is borrowed, and how
    /// many references have no name.
    pub fn paths(&self) -> Paths {
        self.table().map_or_else(paths_of_the_parent, |table| table.paths())
    }

    /// Accepts the paths of this moment, and no others, for [`Owners::audit`].
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
        if let Some(mut table) = self.table() {
            table.accepted = table.paths();
        }
    }

    /// Accepts these paths and no others, for example from a file.
    pub fn accept_these(&self, paths: Paths) {
        if let Some(mut table) = self.table() {
            table.accepted = paths;
        }
    }

    /// Looks for paths that were not accepted. An accepted path need not exist.
    ///
    /// # Errors
    /// [`NewPaths`], with each of them.
    pub fn audit(&self) -> Result<(), NewPaths> {
        let beyond = |table: MutexGuard<'_, OwnerTable>| table.paths().beyond(&table.accepted);
        let paths = self.table().map_or_else(paths_of_the_parent, beyond);
        if paths.is_empty() { Ok(()) } else { Err(NewPaths { paths }) }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn table(&self) -> Option<MutexGuard<'_, OwnerTable>> {
        self.shared.table()
    }

    /// Takes a value out of its entry and drops it. Returns the message of a panic.
    fn let_go(&self, value: ValueId) -> Option<String> {
        let taken = self.table()?.take(value)?;
        let taken = Lent::new(&self.shared, taken, &BEING_DROPPED);
        catch(move || drop(taken)).err()
    }

    /// Measures a value, and keeps the answer for when a reference holds it.
    fn measure(&self, value: ValueId) -> Option<Bytes> {
        let (lent, measure) = self.table()?.lend_to_measure(value)?;
        let lent = Lent::new(&self.shared, lent, &IN_USE);
        // This may be the last reference by the time it is dropped.
        let bytes = catch(move || measure(&*lent)).ok()?;
        self.table()?.set_bytes(value, bytes);
        Some(bytes)
    }

    pub(super) fn put(&self, entry: EntryId, value: Arc<Erased>) {
        self.measure_before_it_goes(entry);
        let before = self.shared.own_table().put(entry, value);
        drop(before.map(|taken| Lent::new(&self.shared, taken, &BEING_DROPPED)));
    }

    /// Removes the entry of an `Owned` that is dropped.
    pub(super) fn leave(&self, entry: EntryId) {
        self.measure_before_it_goes(entry);
        let Some((entry, value)) = self.table().map(|mut table| table.remove(entry)) else {
            return;
        };
        drop(value.map(|taken| Lent::new(&self.shared, taken, &BEING_DROPPED)));
        drop(entry);
    }

    fn measure_before_it_goes(&self, entry: EntryId) {
        let value = self.table().and_then(|table| table.value_in(entry));
        value.map(|value| self.measure(value));
    }
}

debug_as!(Owners, |_| "Owners");

/// The holder of everything in a registry that a forked child inherited.
fn the_parent() -> Holder {
    Holder::new(fork::refusal("registry of owners"), EVERY_OWNER)
}

fn paths_of_the_parent() -> Paths {
    let Holder { path, holds, .. } = the_parent();
    Paths { named: [HeldPath { holds, path }].into(), ..Paths::default() }
}

const EVERY_OWNER: &str = "(every owner)";
