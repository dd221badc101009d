//! Pause, update, resume: weights change while nothing runs, and reserved memory stays flat.
//!
//! The gate stops the work. Cached memory goes back to the driver before the gate opens again, so that
//! the trim does not race with work. The trend of reserved memory over many resumes is watched.

use std::sync::Arc;
use std::time::Duration;

use lowtide_types::{Receipt, debug_as};

use super::slope::{Slope, Trend, TrendWarning};
use crate::climb::{Releaser, Request};
use crate::clock::Clock;
use crate::fork::ProcessMutex;
use crate::gate::{Busy, Closed, Mode};
use crate::rungs::Ladder;

/// The pauses of one engine. Clones share their trend.
#[derive(Clone)]
pub struct Pauses {
    releaser: Releaser,
    flush: Option<Arc<dyn Fn() + Send + Sync>>,
    slope: Arc<ProcessMutex<Slope>>,
}

impl Pauses {
    /// Creates pauses of the work that passes the gate of `releaser`.
    pub fn new(releaser: &Releaser) -> Pauses {
        Pauses { releaser: releaser.clone(), flush: None, slope: Arc::default() }
    }

    /// Sets a function that drops the keys and values of running work. It is called by a pause that
    /// ends or retracts the work, never for [`Mode::InPlace`].
    ///
    /// It runs inside the closed gate, as a hook of a release does: it may enter the gate, and closing it
    /// or a release that needs it closed is refused at once.
    #[must_use]
    pub fn flushing(mut self, flush: impl Fn() + Send + Sync + 'static) -> Pauses {
        self.flush = Some(Arc::new(flush));
        self
    }

    /// Returns the same pauses with another clock for the waits of its caller, as
    /// [`Releaser::with_clock`].
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Pauses {
        Pauses { releaser: self.releaser.with_clock(clock), ..self.clone() }
    }

    /// Stops the work within `limit`. [`Mode::Abort`] and [`Mode::Retract`] also flush and trim.
    ///
    /// # Errors
    /// [`Busy`] if work went on past the limit, or in a forked child that inherited the gate. The gate
    /// is open as before then.
    pub fn pause(&self, mode: Mode, limit: Duration) -> Result<Paused, Busy> {
        let closed = self.releaser.gate().close_within(mode, self.releaser.clock(), limit)?;
        let mut receipt = None;
        if mode != Mode::InPlace {
            let _inside = self.releaser.gate().inside();
            if let Some(flush) = &self.flush {
                flush();
            }
            receipt = Some(self.releaser.empty_cache());
        }
        Ok(Paused { pauses: self.clone(), closed: Some(closed), receipt })
    }

    /// Returns the trend of reserved memory over the resumes so far.
    pub fn trend(&self) -> Trend {
        self.slope.lock().map_or_else(Trend::default, |slope| slope.trend())
    }
}

debug_as!(Pauses, |it| "Pauses({:?})", it.releaser);

/// How a pause ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Whether cached memory is returned to the driver before the gate opens.
    pub empty_cache: bool,
    /// Whether garbage is collected before that, in full only where needed ([`Request::by_need`]).
    pub collect: bool,
}

impl Default for Resume {
    fn default() -> Resume {
        Resume { empty_cache: true, collect: true }
    }
}

/// The result of a resume.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Resumed {
    /// What emptying the cache freed; `None` if it was not asked for.
    pub receipt: Option<Receipt>,
    /// A warning that reserved memory grows with every update, at most once for a window of updates.
    /// It is in the `tracing` log already.
    pub warning: Option<TrendWarning>,
}

/// A pause. No work runs while it exists; dropping it resumes with [`Resume::default`].
///
/// Resuming wakes nothing. A pool that the caller put to sleep in the pause has to wake before the gate opens.
#[must_use = "dropping it resumes at once"]
pub struct Paused {
    pauses: Pauses,
    closed: Option<Closed>,
    receipt: Option<Receipt>,
}

impl Paused {
    /// Returns what the pause itself freed; `None` for [`Mode::InPlace`].
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Returns the number of passes that are parked at a checkpoint.
    pub fn parked(&self) -> usize {
        self.closed.as_ref().map_or(0, Closed::parked)
    }

    /// Returns cached memory to the driver, unless told not to, and opens the gate.
    pub fn resume(mut self, how: Resume) -> Resumed {
        self.go_on(how)
    }

    /// Resumes by another clock than the pause was made with, as [`Releaser::with_clock`].
    pub fn resume_with_clock(mut self, how: Resume, clock: Arc<dyn Clock>) -> Resumed {
        self.pauses = self.pauses.with_clock(clock);
        self.go_on(how)
    }

    fn go_on(&mut self, how: Resume) -> Resumed {
        let Some(closed) = self.closed.take() else { return Resumed::default() };
        let releaser = &self.pauses.releaser;
        let ladder = if how.collect { Ladder::cache() } else { Ladder::trim() };
        let request = Request::new("resume", ladder).by_need().quiet();
        let receipt = how.empty_cache.then(|| {
            let _inside = releaser.gate().inside();
            releaser.release(request)
        });
        if releaser.is_inherited() {
            // The gate stays the parent's to open, and a log may have a lock of its own.
            return Resumed { receipt, warning: None };
        }
        if let Some(receipt) = &receipt {
            tracing::info!("{}", receipt.reserved_line());
        }
        let reserved = releaser.inventory().read().reserved;
        let warning = self.pauses.slope.lock().and_then(|mut slope| slope.add(reserved));
        if let Some(warning) = warning {
            let TrendWarning { per_update, updates, reserved } = warning;
            tracing::warn!(%per_update, updates, %reserved, "{warning}");
        }
        closed.open();
        Resumed { receipt, warning }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.go_on(Resume::default());
    }
}

debug_as!(Paused, |it| "Paused({} parked)", it.parked());
