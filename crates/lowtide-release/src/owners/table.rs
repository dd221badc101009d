//! The table of owners: what the registry knows. Nothing here calls a caller's code or drops a caller's
//! value; that is done after the lock is released. Every change looks up all that it needs before it
//! writes, so that a broken rule panics with the table as it was.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::ThreadId;

use lowtide_types::{Bytes, Holder};

use super::order::order;
use super::report::{Cycle, HeldPath, Paths, Plan, Planned, UNNAMED};

/// The path of references that last for one call.
pub(super) static IN_USE: LazyLock<Arc<str>> = LazyLock::new(|| "(in use)".into());

/// The path of the registry's own reference to a value that it drops.
pub(super) static BEING_DROPPED: LazyLock<Arc<str>> = LazyLock::new(|| "(being dropped)".into());

/// Places of unnamed references that are remembered for one value.
const MOST_PLACES: usize = 8;

fn place_text(place: CallSite) -> String {
    format!("{}:{}", place.file(), place.line())
}

/// A value of any type.
pub(super) type Erased = dyn Any + Send + Sync;

/// Measures the memory that is freed with a value.
pub(super) type Measure = Arc<dyn Fn(&Erased) -> Bytes + Send + Sync>;

/// The entry of one `Owned`, with or without a value.
pub(super) struct OwnerEntry {
    name: Arc<str>,
    /// The names that it borrows. They need not be registered yet.
    borrows: BTreeSet<Arc<str>>,
    measure: Option<Measure>,
    value: Option<Reference>,
}

/// A counted reference to a value.
pub(super) type Reference = (ValueId, Arc<Erased>);

/// The number of an entry. Numbers count up, so entries are in the order of their registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId(u64);

/// The number of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueId(u64);

/// What is known of a value, from the moment it is put in an entry until its last reference is dropped.
struct ValueRecord {
    name: Arc<str>,
    value: Weak<Erased>,
    in_entry: bool,
    bytes: Option<Bytes>,
    /// The recorded references, by path.
    paths: BTreeMap<Arc<str>, LentPath>,
    /// The places where references without a name were taken.
    shared_at: Vec<CallSite>,
}

/// A place in a program's source.
pub(super) type CallSite = &'static Location<'static>;

/// The references by one path.
#[derive(Default)]
struct LentPath {
    count: usize,
    /// The place where the last of them was taken.
    since: Option<CallSite>,
}

impl ValueRecord {
    /// A recorded path counts until its drop has returned: the memory is not free before.
    fn is_gone(&self) -> bool {
        !self.in_entry && self.paths.is_empty() && self.value.strong_count() == 0
    }

    fn unnamed(&self) -> usize {
        let recorded = self.paths.values().map(|lent| lent.count).sum::<usize>();
        let known = recorded + usize::from(self.in_entry);
        self.value.strong_count().saturating_sub(known)
    }

    fn holders(&self) -> impl Iterator<Item = Holder> {
        let places: Vec<String> = self.shared_at.iter().map(|place| place_text(place)).collect();
        let shared = Some(places.join(", ")).filter(|places| !places.is_empty());
        let unnamed = Some((UNNAMED, self.unnamed(), shared)).filter(|(_, count, _)| *count > 0);
        let named =
            self.paths.iter().map(|(path, lent)| (&**path, lent.count, lent.since.map(place_text)));
        named.chain(unnamed).map(|(path, count, since)| Holder {
            path: path.to_owned(),
            holds: self.name.to_string(),
            count,
            since,
            held: self.bytes,
            cut: None,
            by_hand: None,
            number: None,
            together: Vec::new(),
        })
    }
}

/// Entries and values.
#[derive(Default)]
pub(super) struct OwnerTable {
    entries: BTreeMap<EntryId, OwnerEntry>,
    values: BTreeMap<ValueId, ValueRecord>,
    last_number: u64,
    pub(super) accepted: Paths,
    /// The thread that runs a shutdown.
    pub(super) at_work: Option<ThreadId>,
}

impl OwnerTable {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether anything was ever registered.
    pub(super) fn has_had_any(&self) -> bool {
        self.last_number > 0
    }

    pub(super) fn declare(&mut self, name: Arc<str>) -> EntryId {
        let id = EntryId(self.number());
        let entry = OwnerEntry { name, borrows: BTreeSet::new(), measure: None, value: None };
        self.entries.insert(id, entry);
        id
    }

    // An `Owned` has its entry for as long as it exists.
    fn entry(&mut self, id: EntryId) -> &mut OwnerEntry {
        self.entries.get_mut(&id).expect("an entry stays until its `Owned` is dropped")
    }

    pub(super) fn add_borrow(&mut self, id: EntryId, name: Arc<str>) {
        self.entry(id).borrows.insert(name);
    }

    /// Sets the measure of an entry. Returns the one that was there before.
    pub(super) fn set_measure(&mut self, id: EntryId, measure: Measure) -> Option<Measure> {
        self.entry(id).measure.replace(measure)
    }

    /// Puts a value in an entry. Returns the value that was there before.
    pub(super) fn put(&mut self, id: EntryId, value: Arc<Erased>) -> Option<Reference> {
        let before = self.take_from(id);
        let value_id = ValueId(self.number());
        let entry = self.entry(id);
        let known = ValueRecord {
            name: entry.name.clone(),
            value: Arc::downgrade(&value),
            in_entry: true,
            bytes: None,
            paths: BTreeMap::new(),
            shared_at: Vec::new(),
        };
        entry.value = Some((value_id, value));
        self.values.insert(value_id, known);
        before
    }

    pub(super) fn value_in(&self, id: EntryId) -> Option<ValueId> {
        Some(self.entries.get(&id)?.value.as_ref()?.0)
    }

    /// Returns another reference to the value of an entry, recorded by its path.
    pub(super) fn lend(
        &mut self,
        id: EntryId,
        path: &Arc<str>,
        since: Option<CallSite>,
    ) -> Option<Reference> {
        let (value_id, value) = self.entry(id).value.clone()?;
        self.add_path(value_id, path, since);
        Some((value_id, value))
    }

    /// Remembers where a reference without a name was taken from the value of an entry.
    pub(super) fn note_shared(&mut self, id: EntryId, place: CallSite) {
        let Some(value) = self.value_in(id) else { return };
        let known = self.known(value);
        let is_there =
            |other: &CallSite| (other.file(), other.line()) == (place.file(), place.line());
        if !known.shared_at.iter().any(is_there) && known.shared_at.len() < MOST_PLACES {
            known.shared_at.push(place);
        }
    }

    /// The same for a value with its measure; `None` if it has none, or is in no entry.
    pub(super) fn lend_to_measure(&mut self, id: ValueId) -> Option<(Reference, Measure)> {
        let entry = self.entry_with(id)?;
        let measure = self.entry(entry).measure.clone()?;
        Some((self.lend(entry, &IN_USE, None)?, measure))
    }

    fn entry_with(&self, id: ValueId) -> Option<EntryId> {
        self.entries.keys().copied().find(|entry| self.value_in(*entry) == Some(id))
    }

    /// Takes a value out, if it is still in an entry. It is recorded as being dropped.
    pub(super) fn take(&mut self, id: ValueId) -> Option<Reference> {
        self.take_from(self.entry_with(id)?)
    }

    fn take_from(&mut self, id: EntryId) -> Option<Reference> {
        let value_id = self.value_in(id)?;
        self.add_path(value_id, &BEING_DROPPED, None);
        self.known(value_id).in_entry = false;
        self.entry(id).value.take()
    }

    /// Removes an entry, with its value.
    pub(super) fn remove(&mut self, id: EntryId) -> (Option<OwnerEntry>, Option<Reference>) {
        let value = self.take_from(id);
        (self.entries.remove(&id), value)
    }

    fn known(&mut self, id: ValueId) -> &mut ValueRecord {
        self.values.get_mut(&id).expect("a value is known while it is referenced")
    }

    pub(super) fn set_bytes(&mut self, id: ValueId, bytes: Bytes) {
        if let Some(known) = self.values.get_mut(&id) {
            known.bytes = Some(bytes);
        }
    }

    fn add_path(&mut self, id: ValueId, path: &Arc<str>, since: Option<CallSite>) {
        let lent = self.known(id).paths.entry(path.clone()).or_default();
        lent.count += 1;
        lent.since = since.or(lent.since);
    }

    /// Records that a reference was dropped.
    pub(super) fn remove_path(&mut self, id: ValueId, path: &str) {
        let known = self.known(id);
        let lent = known.paths.get_mut(path).expect("a reference is recorded while it exists");
        lent.count -= 1;
        if lent.count == 0 {
            known.paths.remove(path);
        }
        if known.is_gone() {
            self.values.remove(&id);
        }
    }

    /// Returns whether a value is still referenced. References that nobody named are dropped unnoticed.
    pub(super) fn is_held(&mut self, id: ValueId) -> bool {
        self.values.retain(|_, known| !known.is_gone());
        self.values.contains_key(&id)
    }

    pub(super) fn holders(&mut self) -> Vec<Holder> {
        self.values.retain(|_, known| !known.is_gone());
        self.values
            .values()
            .filter(|known| !known.in_entry)
            .flat_map(ValueRecord::holders)
            .collect()
    }

    pub(super) fn paths(&self) -> Paths {
        let mut paths = Paths::default();
        for entry in self.entries.values() {
            for holds in &entry.borrows {
                paths.add(holds, &entry.name);
            }
        }
        for known in self.values.values() {
            // The registry's own references are short, and not paths of a caller.
            let lasts = |path: &&Arc<str>| ![&*IN_USE, &*BEING_DROPPED].contains(path);
            for path in known.paths.keys().filter(lasts) {
                paths.add(&known.name, path);
            }
            let unnamed = known.unnamed();
            if unnamed > 0 {
                *paths.unnamed.entry(known.name.to_string()).or_insert(0) += unnamed;
            }
        }
        paths
    }

    /// Returns the plan without its bytes, and the values of its steps.
    pub(super) fn plan(&self) -> (Plan, Vec<ValueId>) {
        // Empty entries too, because an owner that borrows through one is still dropped first. They
        // cost nothing, so they come last here, which is to be dropped first.
        let (filled, empty): (Vec<&OwnerEntry>, Vec<&OwnerEntry>) =
            self.entries.values().partition(|entry| entry.value.is_some());
        let entries = [&*filled, &*empty].concat();
        let borrowed = self.borrowed_by_name();
        let none = BTreeSet::new();
        let borrows_of = |entry: &OwnerEntry| borrowed.get(&*entry.name).unwrap_or(&none);
        let graph: Vec<BTreeSet<usize>> = entries
            .iter()
            .map(|from| {
                let wanted = borrows_of(from);
                (0..entries.len()).filter(|&to| wanted.contains(&*entries[to].name)).collect()
            })
            .collect();
        let order = order(&graph);

        let (mut plan, mut values) = (Plan::default(), Vec::new());
        for entry in order.first_to_last.iter().map(|&number| entries[number]) {
            let Some((value, _)) = &entry.value else { continue };
            let borrows = borrows_of(entry).iter().map(|name| (*name).to_owned()).collect();
            plan.steps.push(Planned { name: entry.name.to_string(), bytes: None, borrows });
            values.push(*value);
        }
        plan.empty = empty.iter().map(|entry| entry.name.to_string()).collect();
        let names = |cycle: &Vec<usize>| Cycle {
            names: cycle.iter().map(|&number| entries[number].name.to_string()).collect(),
        };
        plan.cycles = order.cycles.iter().map(names).collect();
        (plan, values)
    }

    /// Returns, by owner, the names that it borrows: those it declared, and those lent to a path below
    /// its name.
    fn borrowed_by_name(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut borrowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for entry in self.entries.values() {
            let said = entry.borrows.iter().map(|name| &**name);
            borrowed.entry(&*entry.name).or_default().extend(said);
        }
        let lent = self.values.values().flat_map(|known| {
            known.paths.keys().filter_map(|path| Some((self.owner_of(path)?, &*known.name)))
        });
        for (borrower, name) in lent {
            borrowed.entry(borrower).or_default().insert(name);
        }
        // An owner does not borrow its own value.
        for (borrower, names) in &mut borrowed {
            names.remove(borrower);
        }
        borrowed
    }

    /// Returns the owner that a path is in; of several, the innermost.
    fn owner_of(&self, path: &str) -> Option<&str> {
        let is_above = |name: &&str| {
            path.strip_prefix(*name)
                .is_some_and(|rest| matches!(rest.bytes().next(), None | Some(b'.' | b'[')))
        };
        self.entries
            .values()
            .map(|entry| &*entry.name)
            .filter(is_above)
            .max_by_key(|name| name.len())
    }
}

impl Paths {
    fn add(&mut self, holds: &str, path: &str) {
        self.named.insert(HeldPath { holds: holds.to_owned(), path: path.to_owned() });
    }
}
