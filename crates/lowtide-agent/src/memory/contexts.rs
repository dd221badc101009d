//! The contexts of the program. Work in any of them may use any memory of the program, so each is asked before a
//! sleep, also one in which the program has allocated nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::busy::Question;

static ALIVE: Mutex<BTreeMap<usize, Arc<Question>>> = Mutex::new(BTreeMap::new());

/// Notes a context that the program made, or retained.
pub(crate) fn made(context: usize) {
    alive().entry(context).or_default();
}

/// Notes that a context is about to be destroyed.
pub(crate) fn left(context: usize) {
    alive().remove(&context);
}

/// Returns the contexts that are alive, with the questions for them.
pub(crate) fn all() -> Vec<(usize, Arc<Question>)> {
    alive().iter().map(|(context, question)| (*context, Arc::clone(question))).collect()
}

fn alive() -> MutexGuard<'static, BTreeMap<usize, Arc<Question>>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
