//! Pause, update, resume: weights change while nothing runs, and reserved memory stays flat.
//!
//! The gate stops the work; what is cached goes back to the driver before it opens again, so that the
//! trim races with nothing; the slope over many resumes is watched.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowtide_types::Receipt;

use crate::ask::Ask;
use crate::gate::{Busy, Closed, Mode};
use crate::ladder::Ladder;
use crate::releaser::Releaser;
use crate::slope::{Slope, Trend};

/// Pauses of one engine. Clones are the same.
#[derive(Clone)]
pub struct Pauses {
    releaser: Releaser,
    flush: Option<Arc<dyn Fn() + Send + Sync>>,
    slope: Arc<Mutex<Slope>>,
}

impl Pauses {
    /// Of the work that passes the releaser's gate.
    pub fn new(releaser: &Releaser) -> Pauses {
        Pauses { releaser: releaser.clone(), flush: None, slope: Arc::default() }
    }

    /// What is flushed at a pause that ends or retracts the running work: its keys and values. Never
    /// called for [`Mode::InPlace`].
    #[must_use]
    pub fn flushing(mut self, flush: impl Fn() + Send + Sync + 'static) -> Pauses {
        self.flush = Some(Arc::new(flush));
        self
    }

    /// Stops the work within `limit`. [`Mode::Abort`] and [`Mode::Retract`] flush and trim already.
    ///
    /// # Errors
    /// [`Busy`] where work went on past the limit; the gate is open as before then.
    pub fn pause(&self, mode: Mode, limit: Duration) -> Result<Paused, Busy> {
        let clock = self.releaser.scene().clock();
        let closed = self.releaser.gate().close_within(mode, clock, limit)?;
        let mut receipt = None;
        if mode != Mode::InPlace {
            if let Some(flush) = &self.flush {
                flush();
            }
            receipt = Some(self.releaser.empty_cache());
        }
        Ok(Paused { pauses: self.clone(), closed: Some(closed), receipt })
    }

    /// How reserved memory has gone over the resumes so far.
    pub fn trend(&self) -> Trend {
        self.slope.lock().unwrap_or_else(PoisonError::into_inner).trend()
    }
}

impl fmt::Debug for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pauses({:?})", self.releaser)
    }
}

/// How to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Whether cached memory goes back to the driver first.
    pub empty_cache: bool,
}

impl Default for Resume {
    fn default() -> Resume {
        Resume { empty_cache: true }
    }
}

/// A pause. Nothing runs while it lives; dropping it resumes as usual.
#[must_use = "dropping it resumes at once"]
pub struct Paused {
    pauses: Pauses,
    closed: Option<Closed>,
    receipt: Option<Arc<Receipt>>,
}

impl Paused {
    /// What the pause itself gave back; `None` where it left everything in place.
    pub fn receipt(&self) -> Option<&Arc<Receipt>> {
        self.receipt.as_ref()
    }

    /// How many pieces of work wait where they were stopped.
    pub fn parked(&self) -> usize {
        self.closed.as_ref().map_or(0, Closed::parked)
    }

    /// Gives cached memory back, unless told not to, and opens the gate.
    pub fn resume(mut self, how: Resume) -> Option<Arc<Receipt>> {
        self.go_on(how)
    }

    fn go_on(&mut self, how: Resume) -> Option<Arc<Receipt>> {
        let closed = self.closed.take()?;
        let releaser = &self.pauses.releaser;
        let receipt =
            how.empty_cache.then(|| releaser.release(Ask::new("resume", Ladder::cache()).quiet()));
        if let Some(receipt) = &receipt {
            tracing::info!("{}", receipt.reserved_line());
        }
        let reserved = releaser.scene().read().reserved;
        self.pauses.slope.lock().unwrap_or_else(PoisonError::into_inner).add(reserved);
        closed.open();
        receipt
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.go_on(Resume::default());
    }
}

impl fmt::Debug for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Paused({} parked)", self.parked())
    }
}
