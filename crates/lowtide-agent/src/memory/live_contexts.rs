//! The contexts of the program. Work in any of them may use any memory of the program, so each is asked before a
//! sleep, also one in which the program has allocated nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::busy::Question;

static CONTEXTS: Mutex<Contexts> =
    Mutex::new(Contexts { alive: BTreeMap::new(), primary: BTreeMap::new() });

struct Contexts {
    alive: BTreeMap<usize, Arc<Question>>,
    /// The primary context of each device, and how often the program has retained it.
    primary: BTreeMap<i32, (usize, u32)>,
}

/// Notes a context that the program made, retained, or allocates in.
pub(crate) fn created(context: usize) {
    contexts().alive.entry(context).or_default();
}

/// Notes that a context is about to be destroyed.
pub(crate) fn destroyed(context: usize) {
    contexts().alive.remove(&context);
}

/// Returns the contexts that are alive, with the questions for them.
pub(crate) fn all() -> Vec<(usize, Arc<Question>)> {
    let contexts = contexts();
    contexts.alive.iter().map(|(context, question)| (*context, Arc::clone(question))).collect()
}

/// Notes that the program retained the primary context of a device.
pub(crate) fn retained(device: i32, context: usize) {
    created(context);
    let mut contexts = contexts();
    let (primary, count) = contexts.primary.entry(device).or_default();
    *primary = context;
    *count += 1;
}

/// Notes that the program releases the primary context of a device; returns the context if this is the last time.
pub(crate) fn released(device: i32) -> Option<usize> {
    let mut contexts = contexts();
    let (context, count) = contexts.primary.get_mut(&device)?;
    *count = count.saturating_sub(1);
    (*count == 0).then_some(*context)
}

/// Returns the primary context of a device.
pub(crate) fn primary(device: i32) -> Option<usize> {
    contexts().primary.get(&device).map(|(context, _)| *context)
}

/// Returns whether a context is the primary one of a device.
pub(crate) fn is_primary(context: usize) -> bool {
    contexts().primary.values().any(|(primary, _)| *primary == context)
}

fn contexts() -> MutexGuard<'static, Contexts> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}
