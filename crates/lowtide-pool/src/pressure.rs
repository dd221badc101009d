//! Pressure: who is asked to free something before out of memory is reported.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lowtide_device::Bytes;

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// What was asked for.
    pub requested: Bytes,
    /// What the device says is free.
    pub free: Bytes,
    /// How often somebody was asked for this request already.
    pub round: u32,
}

/// What somebody who was asked says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Something was freed: try again.
    Retry,
    /// There is nothing to free here.
    Nothing,
}

/// However often it says so, it is not asked more often than this for one request.
pub(crate) const ROUNDS_MOST: u32 = 64;

type Callback = dyn Fn(&Pressure) -> Answer + Send + Sync;

/// Who is asked.
#[derive(Default)]
pub(crate) struct Callbacks {
    list: Mutex<Vec<Weak<Callback>>>,
}

/// While this lives, its callback is asked.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    _callback: Arc<Callback>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

impl Callbacks {
    pub(crate) fn add(
        &self,
        callback: impl Fn(&Pressure) -> Answer + Send + Sync + 'static,
    ) -> Subscription {
        let callback: Arc<Callback> = Arc::new(callback);
        self.list().push(Arc::downgrade(&callback));
        Subscription { _callback: callback }
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Callback>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one after another until one has freed something. No lock is held: who is asked may
    /// free, trim, or put other tags to sleep.
    pub(crate) fn ask(&self, pressure: &Pressure) -> Answer {
        let mut list = self.list();
        list.retain(|callback| callback.strong_count() > 0);
        let asked = list.clone();
        drop(list);
        let mut callbacks = asked.iter().filter_map(Weak::upgrade);
        match callbacks.find(|callback| callback(pressure) == Answer::Retry) {
            Some(_) => Answer::Retry,
            None => Answer::Nothing,
        }
    }
}
