//! The primary contexts of the program: how often it has retained each.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static RETAINED: Mutex<BTreeMap<i32, (u32, usize)>> = Mutex::new(BTreeMap::new());

pub(crate) fn retained(device: i32, context: usize) {
    let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, known) = retained.entry(device).or_default();
    *count += 1;
    *known = context;
}

/// Returns the context if this release is its last.
pub(crate) fn released(device: i32) -> Option<usize> {
    let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, context) = retained.get_mut(&device)?;
    *count = count.saturating_sub(1);
    (*count == 0).then_some(*context)
}

pub(crate) fn of(device: i32) -> Option<usize> {
    let retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    retained.get(&device).map(|(_, context)| *context)
}
