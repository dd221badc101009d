//! What a device and everything taken from it share: the back end, staging memory, and what the driver
//! has not taken back yet.

use std::sync::{Arc, Mutex, MutexGuard};

use lowtide_types::DeviceId;

use crate::Result;
use crate::backend::Backend;
use crate::os::exit;
use crate::os::process::Generation;
use crate::safe::staging::{Staging, StagingCache};
use crate::sync::lock;

/// The state of one device, kept alive by the device and by everything taken from it.
pub(crate) struct Shared {
    pub(crate) backend: Box<dyn Backend>,
    /// The process whose device this is.
    made_in: Generation,
    staging: StagingCache,
    leftovers: Mutex<Vec<Leftover>>,
}

/// Something that the driver refused to take back.
struct Leftover {
    what: &'static str,
    give_back: Box<GiveBack>,
}

type GiveBack = dyn FnMut(&dyn Backend) -> Result<()> + Send;

impl Shared {
    pub(crate) fn new(backend: impl Backend + 'static) -> Arc<Shared> {
        exit::watch(&exit::OF_DEVICES);
        let (staging, leftovers) = (StagingCache::default(), Mutex::default());
        let made_in = Generation::current();
        Arc::new(Shared { backend: Box::new(backend), made_in, staging, leftovers })
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.backend.info().id
    }

    /// Refuses work in a forked child of the process whose device this is.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.made_in.check()
    }

    /// Returns whether the device is this process's own.
    pub(crate) fn is_own(&self) -> bool {
        self.made_in.is_current()
    }

    /// Returns whether a drop may give something back: not in a forked child, and not once the process
    /// exits.
    pub(crate) fn takes_back(&self) -> bool {
        self.is_own() && !exit::has_begun()
    }

    /// Takes staging memory for the digests of this many pages.
    pub(crate) fn take_staging(&self, pages: usize) -> Result<Staging> {
        self.staging.take(self.backend.as_ref(), pages)
    }

    /// Keeps staging memory, which no work uses any more, for the next digest.
    pub(crate) fn keep_staging(&self, staging: Staging) {
        self.staging.keep(staging);
    }

    /// Returns how many things the driver has not taken back.
    pub(crate) fn leftover_count(&self) -> usize {
        if self.is_own() { self.leftovers().len() } else { 0 }
    }

    fn leftovers(&self) -> MutexGuard<'_, Vec<Leftover>> {
        lock(&self.leftovers)
    }

    /// Gives something back where no caller can be told of a failure. What the driver refuses is kept
    /// and tried again later, so that one bad call does not leak.
    pub(crate) fn give_back(
        &self,
        what: &'static str,
        mut give_back: impl FnMut(&dyn Backend) -> Result<()> + Send + 'static,
    ) {
        if !self.takes_back() {
            return;
        }
        match give_back(self.backend.as_ref()) {
            Ok(()) => {}
            Err(error) if error.is_context_lost() => {
                tracing::error!(device = %self.id(), what, %error, "lost with its context");
            }
            Err(error) => {
                tracing::warn!(device = %self.id(), what, %error, "not taken back; will try again");
                self.leftovers().push(Leftover { what, give_back: Box::new(give_back) });
            }
        }
    }

    /// Tries once more to give back what the driver refused.
    pub(crate) fn sweep(&self) {
        let waiting = std::mem::take(&mut *self.leftovers());
        for mut leftover in waiting {
            match (leftover.give_back)(self.backend.as_ref()) {
                Err(error) if !error.is_context_lost() => self.leftovers().push(leftover),
                _ => {}
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_own() {
            // A thread of the parent may have been in the middle of a change when this process was forked.
            std::mem::forget(std::mem::take(&mut self.staging));
            std::mem::forget(std::mem::take(&mut self.leftovers));
        }
        if !self.takes_back() {
            return;
        }
        for staging in self.staging.drain() {
            self.give_back("staging memory", move |backend| staging.give_back(backend));
        }
        self.sweep();
        for leftover in self.leftovers().iter() {
            tracing::error!(device = %self.id(), what = leftover.what, "never taken back");
        }
    }
}
