//! Pressure: callbacks that are asked to free memory before the pool reports out of memory.
//!
//! A callback may allocate or wake. If that finds no room either, it is refused, and nobody is asked on
//! its behalf: callbacks of this pool would ask themselves without end.
//!
//! A callback that lets another thread allocate is not recognised, because every thread may ask at any
//! time. But it comes to an end: callbacks that run beside others and help nobody are counted, and past a
//! limit nobody is asked until they have ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread;

use lowtide_device::Bytes;
use lowtide_types::debug_as;

use crate::lock::inside::{Callback, Inside};

/// A request that the device has no memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// The bytes that were asked for.
    pub requested: Bytes,
    /// The free memory that the device reports.
    pub free: Bytes,
    /// The number of times that callbacks were asked for this request before.
    pub round: u32,
}

/// The answer of a callback that was asked to free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PressureAnswer {
    /// Memory was freed: try again.
    Retry,
    /// The callback could free nothing.
    Nothing,
}

/// However often a callback says so, it is not asked more often than this for one request.
pub(crate) const ROUNDS_MOST: u32 = 64;

type PressureCallback = dyn Fn(&Pressure) -> PressureAnswer + Send + Sync;

/// Threads that ask at a time. More are callbacks within callbacks.
const RUNNING_MOST: usize = 64;

/// Questions in a row that were asked while callbacks ran, and helped nobody.
const IN_VAIN_MOST: usize = 64;

/// The callbacks of a pool.
#[derive(Default)]
pub(crate) struct Callbacks {
    list: Mutex<Vec<Weak<PressureCallback>>>,
    questions: Mutex<Questions>,
}

/// The questions that are being asked.
#[derive(Default)]
struct Questions {
    running: usize,
    in_vain: usize,
}

/// A registered callback. Dropping this unregisters it.
#[must_use = "dropping it unregisters the callback"]
pub struct Subscription {
    _callback: Arc<PressureCallback>,
}

debug_as!(Subscription, |_| "Subscription");

impl Callbacks {
    pub(crate) fn add(
        &self,
        callback: impl Fn(&Pressure) -> PressureAnswer + Send + Sync + 'static,
    ) -> Subscription {
        let callback: Arc<PressureCallback> = Arc::new(callback);
        self.list().push(Arc::downgrade(&callback));
        Subscription { _callback: callback }
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Weak<PressureCallback>>> {
        // A list of which one entry changes at a time; callbacks run without the lock.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one after another until one has freed something. No lock is held: a callback may free,
    /// trim, or put other tags to sleep. Asks nobody if one of these callbacks runs on this thread, or
    /// too many run on others.
    pub(crate) fn ask(&self, pressure: &Pressure) -> PressureAnswer {
        let Some(_asking) = Inside::once(self, Callback::Pressure) else {
            return PressureAnswer::Nothing;
        };
        let Some(_running) = Running::new(self) else { return PressureAnswer::Nothing };
        let mut list = self.list();
        list.retain(|callback| callback.strong_count() > 0);
        let asked = list.clone();
        drop(list);
        let mut callbacks = asked.iter().filter_map(Weak::upgrade);
        match callbacks.find(|callback| callback(pressure) == PressureAnswer::Retry) {
            Some(_) => PressureAnswer::Retry,
            None => PressureAnswer::Nothing,
        }
    }
}

impl Callbacks {
    /// Says that a request was served after callbacks were asked.
    pub(crate) fn have_helped(&self) {
        self.questions().in_vain = 0;
    }

    fn questions(&self) -> std::sync::MutexGuard<'_, Questions> {
        // Two numbers, each changed in one step.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is being asked. Dropping it, also in a panic, ends it.
struct Running<'a>(&'a Callbacks);

impl Running<'_> {
    /// Returns `None` if too many run already.
    fn new(callbacks: &Callbacks) -> Option<Running<'_>> {
        let mut questions = callbacks.questions();
        let is_beside = questions.running > 0;
        questions.in_vain = if is_beside { questions.in_vain + 1 } else { 0 };
        if questions.running >= RUNNING_MOST || questions.in_vain > IN_VAIN_MOST {
            return None;
        }
        questions.running += 1;
        Some(Running(callbacks))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.questions().running -= 1;
    }
}

/// The number of times that the lock is tried. It is held for moments, except in a child that was forked in such a
/// moment: there it is never released.
const TRIES: usize = 10_000;

/// All that are alive.
pub(crate) struct Neighbours<T>(Mutex<Vec<Weak<T>>>);

impl<T> Neighbours<T> {
    pub(crate) const fn new() -> Neighbours<T> {
        Neighbours(Mutex::new(Vec::new()))
    }

    /// Adds a new one, unless the lock cannot be had.
    pub(crate) fn add(&self, new: &Arc<T>) {
        let Some(mut all) = self.all() else { return };
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(new));
    }

    /// Returns all but one; none if the lock cannot be had.
    pub(crate) fn of(&self, one: &Arc<T>) -> Vec<Arc<T>> {
        let Some(all) = self.all() else { return Vec::new() };
        let known = all.clone();
        drop(all);
        let others = known.iter().filter_map(Weak::upgrade);
        others.filter(|other| !Arc::ptr_eq(other, one)).collect()
    }

    fn all(&self) -> Option<MutexGuard<'_, Vec<Weak<T>>>> {
        let try_lock = |_| match self.0.try_lock() {
            Ok(all) => Some(all),
            // A list of which one entry changes at a time.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                thread::yield_now();
                None
            }
        };
        (0..TRIES).find_map(try_lock)
    }
}
