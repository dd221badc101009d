//! Who holds a gate, for those who are refused: the places where owned passes were taken, and the parts
//! of releases that keep the gate closed after their release has ended.
//!
//! A borrowed pass is not here. It costs no lock, and its thread is refused at once.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use lowtide_types::debug_as;

use crate::sync::unpoisoned;

/// Places that one refusal names.
const MOST_PLACES: usize = 8;

/// Says that a part of a release still runs; `None` once it has ended.
pub(super) type Keeper = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The number of an owned pass.
pub(super) type OwnedNumber = u64;

#[derive(Default)]
pub(super) struct GateHolders {
    owned: Mutex<OwnedPasses>,
    keepers: Mutex<Vec<Keeper>>,
}

#[derive(Default)]
struct OwnedPasses {
    last: OwnedNumber,
    taken: BTreeMap<OwnedNumber, Taken>,
}

/// How an owned pass was taken.
struct Taken {
    place: TakenAt,
    thread: ThreadId,
}

/// Where an owned pass was taken.
enum TakenAt {
    Rust(&'static Location<'static>),
    HostLanguage(String),
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            TakenAt::Rust(place) => write!(f, "{}:{}", place.file(), place.line())?,
            TakenAt::HostLanguage(place) => f.write_str(place)?,
        }
        // It may have sent the pass away since, so that this is a hint and no reason to refuse at once.
        if self.thread == thread::current().id() {
            f.write_str(" (taken by this thread)")
        } else {
            Ok(())
        }
    }
}

impl GateHolders {
    /// Records an owned pass of this thread.
    pub(super) fn take(&self, place: &'static Location<'static>) -> OwnedNumber {
        let mut owned = unpoisoned(self.owned.lock());
        owned.last += 1;
        let (number, thread) = (owned.last, thread::current().id());
        owned.taken.insert(number, Taken { place: TakenAt::Rust(place), thread });
        number
    }

    /// Records that an owned pass was taken at a place of a host language.
    pub(super) fn note_place(&self, number: OwnedNumber, place: String) {
        if let Some(taken) = unpoisoned(self.owned.lock()).taken.get_mut(&number) {
            taken.place = TakenAt::HostLanguage(place);
        }
    }

    pub(super) fn forget(&self, number: OwnedNumber) {
        unpoisoned(self.owned.lock()).taken.remove(&number);
    }

    /// Returns the places where the owned passes were taken, the oldest first.
    pub(super) fn places(&self) -> Vec<String> {
        let owned = unpoisoned(self.owned.lock());
        let mut places: Vec<String> =
            owned.taken.values().take(MOST_PLACES).map(Taken::to_string).collect();
        let more = owned.taken.len() - places.len();
        if more > 0 {
            places.push(format!("{more} other places"));
        }
        places
    }

    /// Records what keeps the gate closed, until it opens.
    pub(super) fn keep(&self, keeper: Keeper) {
        unpoisoned(self.keepers.lock()).push(keeper);
    }

    /// Forgets what kept the gate closed.
    pub(super) fn opened(&self) {
        // Dropped without the lock: a keeper has a clock of the caller's.
        drop(std::mem::take(&mut *unpoisoned(self.keepers.lock())));
    }

    /// Returns what keeps the gate closed. The keepers are asked without the lock.
    pub(super) fn kept_by(&self) -> Vec<String> {
        let keepers = unpoisoned(self.keepers.lock()).clone();
        keepers.iter().filter_map(|keeper| keeper()).collect()
    }
}

debug_as!(GateHolders, |_| "GateHolders");
