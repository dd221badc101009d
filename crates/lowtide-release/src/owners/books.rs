//! What the registry knows. Nothing here calls a caller's code or drops a caller's value: that is
//! for whoever has let the lock go.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use lowtide_device::Bytes;

use super::order::order;
use super::paths::{HeldPath, Paths};
use super::report::{Cycle, Plan, Planned};
use super::{BEING_DROPPED, IN_USE, UNNAMED};
use crate::Holder;

/// A value of any type.
pub(super) type Erased = dyn Any + Send + Sync;

/// Says what goes when a value goes.
pub(super) type Measure = Arc<dyn Fn(&Erased) -> Bytes + Send + Sync>;

/// A place for a value; one for each `Owned`.
pub(super) struct Place {
    name: Arc<str>,
    /// What it said it borrows, by name: that need not be there yet.
    borrows: BTreeSet<Arc<str>>,
    measure: Option<Measure>,
    value: Option<Reference>,
}

/// A counted reference to a value.
pub(super) type Reference = (ValueId, Arc<Erased>);

/// Numbers count up, so places are in the order of their registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlaceId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValueId(u64);

/// What is known of a value, from the moment it is put in a place until its last reference falls.
struct Known {
    name: Arc<str>,
    value: Weak<Erased>,
    in_place: bool,
    bytes: Option<Bytes>,
    /// References on record, by path.
    paths: BTreeMap<Arc<str>, usize>,
}

impl Known {
    /// A path on record counts until its drop has returned: the memory is not back before.
    fn is_gone(&self) -> bool {
        !self.in_place && self.paths.is_empty() && self.value.strong_count() == 0
    }

    fn unnamed(&self) -> usize {
        let known = self.paths.values().sum::<usize>() + usize::from(self.in_place);
        self.value.strong_count().saturating_sub(known)
    }

    fn holders(&self) -> impl Iterator<Item = Holder> {
        let unnamed = Some((UNNAMED, self.unnamed())).filter(|(_, count)| *count > 0);
        let named = self.paths.iter().map(|(path, count)| (&**path, *count));
        named.chain(unnamed).map(|(path, count)| Holder {
            path: path.to_owned(),
            holds: self.name.to_string(),
            count,
            held: self.bytes,
            cut: None,
        })
    }
}

#[derive(Default)]
pub(super) struct Books {
    places: BTreeMap<PlaceId, Place>,
    values: BTreeMap<ValueId, Known>,
    last_number: u64,
    pub(super) accepted: Paths,
    /// Who is at work on a shutdown.
    pub(super) at_work: Option<ThreadId>,
}

impl Books {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn declare(&mut self, name: Arc<str>) -> PlaceId {
        let id = PlaceId(self.number());
        let place = Place { name, borrows: BTreeSet::new(), measure: None, value: None };
        self.places.insert(id, place);
        id
    }

    // An `Owned` has its place for as long as it lives.
    fn place(&mut self, id: PlaceId) -> &mut Place {
        self.places.get_mut(&id).expect("a place stays until its `Owned` goes")
    }

    pub(super) fn add_borrow(&mut self, id: PlaceId, name: Arc<str>) {
        self.place(id).borrows.insert(name);
    }

    /// The measure that was there before.
    pub(super) fn set_measure(&mut self, id: PlaceId, measure: Measure) -> Option<Measure> {
        self.place(id).measure.replace(measure)
    }

    /// Puts a value in a place; what was there comes out.
    pub(super) fn put(&mut self, id: PlaceId, value: Arc<Erased>) -> Option<Reference> {
        let before = self.take_from(id);
        let value_id = ValueId(self.number());
        let place = self.place(id);
        let known = Known {
            name: place.name.clone(),
            value: Arc::downgrade(&value),
            in_place: true,
            bytes: None,
            paths: BTreeMap::new(),
        };
        place.value = Some((value_id, value));
        self.values.insert(value_id, known);
        before
    }

    pub(super) fn value_in(&self, id: PlaceId) -> Option<ValueId> {
        Some(self.places.get(&id)?.value.as_ref()?.0)
    }

    /// Another reference to what is in a place, on record by its path.
    pub(super) fn lend(&mut self, id: PlaceId, path: &Arc<str>) -> Option<Reference> {
        let (value_id, value) = self.place(id).value.clone()?;
        self.add_path(value_id, path);
        Some((value_id, value))
    }

    /// The same for a value with its measure; `None` where it has none, or is in no place.
    pub(super) fn lend_to_measure(&mut self, id: ValueId) -> Option<(Reference, Measure)> {
        let place = self.place_with(id)?;
        let measure = self.place(place).measure.clone()?;
        Some((self.lend(place, &IN_USE)?, measure))
    }

    fn place_with(&self, id: ValueId) -> Option<PlaceId> {
        self.places.keys().copied().find(|place| self.value_in(*place) == Some(id))
    }

    /// Takes a value out, if it is still in a place. It is on record as being dropped.
    pub(super) fn take(&mut self, id: ValueId) -> Option<Reference> {
        self.take_from(self.place_with(id)?)
    }

    fn take_from(&mut self, id: PlaceId) -> Option<Reference> {
        let (value_id, value) = self.place(id).value.take()?;
        self.known(value_id).in_place = false;
        self.add_path(value_id, &BEING_DROPPED);
        Some((value_id, value))
    }

    /// Takes a place out, with what was in it.
    pub(super) fn remove(&mut self, id: PlaceId) -> (Option<Place>, Option<Reference>) {
        let value = self.take_from(id);
        (self.places.remove(&id), value)
    }

    fn known(&mut self, id: ValueId) -> &mut Known {
        self.values.get_mut(&id).expect("a value is known while somebody has it")
    }

    pub(super) fn set_bytes(&mut self, id: ValueId, bytes: Bytes) {
        if let Some(known) = self.values.get_mut(&id) {
            known.bytes = Some(bytes);
        }
    }

    fn add_path(&mut self, id: ValueId, path: &Arc<str>) {
        *self.known(id).paths.entry(path.clone()).or_insert(0) += 1;
    }

    /// A reference is gone.
    pub(super) fn remove_path(&mut self, id: ValueId, path: &str) {
        let known = self.known(id);
        let count = known.paths.get_mut(path).expect("a reference is on record while it lives");
        *count -= 1;
        if *count == 0 {
            known.paths.remove(path);
        }
        if known.is_gone() {
            self.values.remove(&id);
        }
    }

    /// Whether somebody still has a value. Foreign references fall without telling.
    pub(super) fn is_held(&mut self, id: ValueId) -> bool {
        self.values.retain(|_, known| !known.is_gone());
        self.values.contains_key(&id)
    }

    pub(super) fn holders(&mut self) -> Vec<Holder> {
        self.values.retain(|_, known| !known.is_gone());
        self.values.values().filter(|known| !known.in_place).flat_map(Known::holders).collect()
    }

    pub(super) fn paths(&self) -> Paths {
        let mut paths = Paths::default();
        for place in self.places.values() {
            for holds in &place.borrows {
                paths.add(holds, &place.name);
            }
        }
        for known in self.values.values() {
            // What the registry does itself is short, and no path of anybody's.
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

    /// The plan without its bytes, and the values of its steps.
    pub(super) fn plan(&self) -> (Plan, Vec<ValueId>) {
        // Empty places too, because who borrows through one still goes first. They cost nothing, so
        // they come last here, which is to go first.
        let (filled, empty): (Vec<&Place>, Vec<&Place>) =
            self.places.values().partition(|place| place.value.is_some());
        let places = [&*filled, &*empty].concat();
        let borrowed = self.borrowed_by_name();
        let none = BTreeSet::new();
        let borrows_of = |place: &Place| borrowed.get(&*place.name).unwrap_or(&none);
        let graph: Vec<BTreeSet<usize>> = places
            .iter()
            .map(|from| {
                let wanted = borrows_of(from);
                (0..places.len()).filter(|&to| wanted.contains(&*places[to].name)).collect()
            })
            .collect();
        let order = order(&graph);

        let (mut plan, mut values) = (Plan::default(), Vec::new());
        for place in order.first_to_last.iter().map(|&number| places[number]) {
            let Some((value, _)) = &place.value else { continue };
            let borrows = borrows_of(place).iter().map(|name| (*name).to_owned()).collect();
            plan.steps.push(Planned { name: place.name.to_string(), bytes: None, borrows });
            values.push(*value);
        }
        plan.empty = empty.iter().map(|place| place.name.to_string()).collect();
        let names = |cycle: &Vec<usize>| Cycle {
            names: cycle.iter().map(|&number| places[number].name.to_string()).collect(),
        };
        plan.cycles = order.cycles.iter().map(names).collect();
        (plan, values)
    }

    /// By owner, the names it borrows: what it said, and what was lent to a path below its name.
    fn borrowed_by_name(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut borrowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for place in self.places.values() {
            let said = place.borrows.iter().map(|name| &**name);
            borrowed.entry(&*place.name).or_default().extend(said);
        }
        let lent = self.values.values().flat_map(|known| {
            known.paths.keys().filter_map(|path| Some((self.owner_of(path)?, &*known.name)))
        });
        for (borrower, name) in lent {
            borrowed.entry(borrower).or_default().insert(name);
        }
        // To hold something of one's own is not to borrow.
        for (borrower, names) in &mut borrowed {
            names.remove(borrower);
        }
        borrowed
    }

    /// The owner that a path is in; of several, the innermost.
    fn owner_of(&self, path: &str) -> Option<&str> {
        let is_above = |name: &&str| {
            path.strip_prefix(*name)
                .is_some_and(|rest| matches!(rest.bytes().next(), None | Some(b'.' | b'[')))
        };
        self.places
            .values()
            .map(|place| &*place.name)
            .filter(is_above)
            .max_by_key(|name| name.len())
    }
}

impl Paths {
    fn add(&mut self, holds: &str, path: &str) {
        self.named.insert(HeldPath { holds: holds.to_owned(), path: path.to_owned() });
    }
}
