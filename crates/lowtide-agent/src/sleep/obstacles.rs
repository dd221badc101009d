//! What keeps the process from sleeping, by name.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sleep::surroundings;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes that the process cannot sleep any more, and why.
pub(crate) fn add(name: &str) {
    names_now().insert(name.to_owned());
}

/// Returns why the process cannot sleep; empty if it can.
pub(crate) fn names() -> Vec<String> {
    let noted: Vec<String> = names_now().iter().cloned().collect();
    noted.into_iter().chain(surroundings::names()).collect()
}

fn names_now() -> MutexGuard<'static, BTreeSet<String>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
