//! Owners, what they lend one another, and who outside keeps something. Who holds what is known here
//! by marks of our own, and not by what the registry says.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};

use lowtide_device::Bytes;
use lowtide_release::{Holder, Lent, Owned, Owners};

use crate::deeds::{Deed, Props};
use crate::memory::{Blocks, Memory, Shelf};
use lowtide_testing::Dice;

/// What an owner has.
pub(crate) struct Payload {
    name: String,
    memory: Shelf,
    /// What it borrows from others; they go when it goes.
    pocket: Pocket,
    /// Done when it is dropped.
    deed: Deed,
    props: Arc<Props>,
    /// Gone after everything else in it.
    _lives: Arc<()>,
}

type Pocket = Arc<Mutex<Vec<Borrow>>>;

impl Drop for Payload {
    fn drop(&mut self) {
        // One by one: of several that panic only the first may.
        while let Some(borrow) = { self.pocket.lock().unwrap().pop() } {
            drop(borrow);
        }
        if let Err(failure) = self.props.act(&self.name, self.deed, &self.memory) {
            unreachable!("a drop has nobody to tell: {failure}");
        }
    }
}

/// A reference to somebody's payload.
#[expect(dead_code, reason = "held, and let go of")]
enum Reference {
    Lent(Lent<Payload>),
    Shared(Arc<Payload>),
}

pub(crate) struct Borrow {
    // In this order: the note stays until the reference is gone.
    _reference: Reference,
    _note: Arc<Note>,
}

struct Note {
    value: usize,
    path: String,
}

/// What was ever put in a place.
struct Value {
    place: usize,
    lives: Weak<()>,
    pocket: Pocket,
}

pub(crate) struct Registry {
    places: Vec<Owned<Payload>>,
    values: Vec<Value>,
    notes: Vec<Weak<Note>>,
    outside: Vec<Borrow>,
}

impl Registry {
    pub(crate) fn new(owners: &Owners, dice: &mut Dice) -> Registry {
        let mut places: Vec<Owned<Payload>> = Vec::new();
        for number in 0..dice.roll(5) {
            let mut owned = owners.declare(&format!("engine.part{number}"));
            if dice.one_in(3) {
                // It may not be there, or be this very one.
                owned = owned.borrows(format!("engine.part{}", dice.roll(5)));
            }
            match dice.roll(4) {
                0 => owned = owned.bytes(|_: &Payload| Bytes::mib(1)),
                1 => owned = owned.bytes(|_: &Payload| std::panic::resume_unwind(Box::new(()))),
                _ => {}
            }
            places.push(owned);
        }
        Registry { places, values: Vec::new(), notes: Vec::new(), outside: Vec::new() }
    }

    /// Fills empty places, and has the new ones borrow and be held.
    pub(crate) fn fill(&mut self, dice: &mut Dice, blocks: &mut Blocks, props: &Arc<Props>) {
        for place in 0..self.places.len() {
            if self.places[place].with(|_| ()).is_none() && !dice.one_in(4) {
                self.put(place, dice, blocks, props);
            }
        }
        for value in 0..self.values.len() {
            if !dice.one_in(2) || !self.is_in_place(value) {
                continue;
            }
            let name = self.name_of(value).to_owned();
            let borrower = dice.index(self.values.len());
            match dice.roll(4) {
                0 => self.hold(value, None),
                1 => self.hold(value, Some(format!("outside[{}]", dice.roll(2)))),
                _ if borrower != value && self.values[borrower].lives.strong_count() > 0 => {
                    let path = format!("{}.{name}", self.name_of(borrower));
                    if let Some(borrow) = self.borrow(value, Some(path)) {
                        self.values[borrower].pocket.lock().unwrap().push(borrow);
                    }
                }
                _ => {}
            }
        }
    }

    fn put(&mut self, place: usize, dice: &mut Dice, blocks: &mut Blocks, props: &Arc<Props>) {
        let memory: Vec<Memory> =
            (0..dice.pick(&[0, 0, 0, 1, 1])).filter_map(|_| blocks.take(dice)).collect();
        let deed = match dice.roll(16) {
            0 => Deed::Panic,
            1 => Deed::FreeThenPanic,
            2 => Deed::Hang,
            3 => Deed::Ask,
            _ => Deed::Nothing,
        };
        let (lives, pocket) = (Arc::new(()), Pocket::default());
        let value = Value { place, lives: Arc::downgrade(&lives), pocket: Arc::clone(&pocket) };
        self.values.push(value);
        self.places[place].put(Payload {
            name: self.places[place].name().to_owned(),
            memory: Arc::new(Mutex::new(memory)),
            pocket,
            deed,
            props: Arc::clone(props),
            _lives: lives,
        });
    }

    fn name_of(&self, value: usize) -> &str {
        self.places[self.values[value].place].name()
    }

    fn hold(&mut self, value: usize, path: Option<String>) {
        let borrow = self.borrow(value, path);
        self.outside.extend(borrow);
    }

    // Without a path: a reference of somebody who knows nothing of owners.
    fn borrow(&mut self, value: usize, path: Option<String>) -> Option<Borrow> {
        let place = &self.places[self.values[value].place];
        let reference = match &path {
            Some(path) => Reference::Lent(place.lend(path)?),
            None => Reference::Shared(place.share()?),
        };
        let note = Arc::new(Note { value, path: path.unwrap_or_else(|| "(unnamed)".to_owned()) });
        self.notes.push(Arc::downgrade(&note));
        Some(Borrow { _reference: reference, _note: note })
    }

    // The last that was put in a place, until it was taken out.
    fn is_in_place(&self, value: usize) -> bool {
        let place = self.values[value].place;
        let is_last = self.values.iter().rposition(|other| other.place == place) == Some(value);
        is_last && self.places[place].with(|_| ()).is_some()
    }

    /// Which places are filled, and which of what was ever in one still lives.
    pub(crate) fn state(&self) -> (Vec<bool>, Vec<bool>) {
        let filled = self.places.iter().map(|place| place.with(|_| ()).is_some());
        let living = self.values.iter().map(|value| value.lives.strong_count() > 0);
        (filled.collect(), living.collect())
    }

    /// What was taken out is gone, exactly if nobody holds it; and those who do are named, and
    /// nobody else.
    pub(crate) fn check(&self, told: &[Holder]) {
        let mut held: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        let notes: Vec<Arc<Note>> = self.notes.iter().filter_map(Weak::upgrade).collect();
        for note in &notes {
            *held.entry((note.value, &note.path)).or_default() += 1;
        }
        for (number, value) in self.values.iter().enumerate() {
            let is_held = held.keys().any(|(value, _)| *value == number);
            let lives = value.lives.strong_count() > 0;
            assert_eq!(lives, is_held || self.is_in_place(number), "value {number} lives on");
        }
        let mut expected: Vec<(&str, &str, usize)> = held
            .into_iter()
            .filter(|((value, _), _)| !self.is_in_place(*value))
            .map(|((value, path), count)| (path, self.name_of(value), count))
            .collect();
        let mut told: Vec<(&str, &str, usize)> =
            told.iter().map(|one| (&*one.path, &*one.holds, one.count)).collect();
        expected.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, expected, "holders are those who hold, and no others");
    }

    /// Somebody outside lets go of something. Where that panics, it is theirs to see.
    pub(crate) fn let_one_go(&mut self, dice: &mut Dice) {
        if !self.outside.is_empty() {
            let borrow = self.outside.swap_remove(dice.index(self.outside.len()));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(borrow)));
        }
    }

    /// Everybody lets go of everything, and everything is gone.
    pub(crate) fn end(mut self) {
        self.outside.clear();
        for value in &self.values {
            let borrowed = std::mem::take(&mut *value.pocket.lock().unwrap());
            drop(borrowed);
        }
        self.places.clear();
        let living = self.values.iter().filter(|value| value.lives.strong_count() > 0).count();
        assert_eq!(living, 0, "values live on though nobody holds them");
    }
}
