//! Limits: how a caller stops a sleep, a wake, or an allocation that waits.
//!
//! The pool has no clock. A caller passes a question, "go on?", and the pool asks it between pieces of
//! work and every few milliseconds while it waits.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lowtide_device::Bytes;

use crate::error::TurnStep;
use crate::lock::inside::{Callback, Inside, PoolAddress};
use crate::{Error, Result};

/// A question that a caller answers while the pool works: go on?
///
/// Once the answer is `false`, the operation undoes what it did and returns [`Error::Stopped`]. The
/// question is asked from several threads and never while the pool's lock is held, so the answer may
/// use the pool. Where such a call would wait, it returns [`Error::InsideLimit`]: it could wait for the
/// operation that asks. A panic counts as `false`.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use lowtide_device::{Bytes, Device, HostOptions};
/// # use lowtide_pool::{Limit, Pool, Scope};
/// # let device = Device::host(HostOptions { budget: Some(Bytes::mib(64)), ..HostOptions::default() })?;
/// # let pool = Pool::new(&device)?;
/// let until = Instant::now() + Duration::from_secs(5);
/// pool.sleep_quiet(Scope::Whole, Limit::new(&|| Instant::now() < until))?;
/// # Ok::<(), lowtide_pool::Error>(())
/// ```
#[derive(Clone, Copy, Default)]
pub struct Limit<'a> {
    go_on: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// The pool that asks.
    asked_by: Option<PoolAddress>,
}

impl<'a> Limit<'a> {
    /// No limit: the operation runs to its end.
    pub const NONE: Limit<'static> = Limit { go_on: None, asked_by: None };

    /// Stops the operation when `go_on` returns `false`.
    pub fn new(go_on: &'a (dyn Fn() -> bool + Sync)) -> Limit<'a> {
        Limit { go_on: Some(go_on), asked_by: None }
    }

    /// Returns the same limit, asked by the pool with this monitor, which recognises calls that come back.
    pub(crate) fn asked_by<M>(self, monitor: &M) -> Limit<'a> {
        Limit { asked_by: Some(PoolAddress::of(monitor)), ..self }
    }

    pub(crate) fn is_none(self) -> bool {
        self.go_on.is_none()
    }

    /// Asks; fails where the answer is no, with how far the step had come.
    pub(crate) fn ask(self, step: TurnStep, progress: impl FnOnce() -> Progress) -> Result<()> {
        let goes_on = |go_on: &(dyn Fn() -> bool + Sync)| {
            let _inside = self.asked_by.map(|pool| Inside::new(pool, Callback::Limit));
            // A panic must not leave the turn halfway: it is undone as by any other stop.
            catch_unwind(AssertUnwindSafe(go_on)).unwrap_or(false)
        };
        if self.go_on.is_none_or(goes_on) {
            return Ok(());
        }
        let Progress { done, total } = progress();
        Err(Error::Stopped { step, done, total })
    }
}

impl fmt::Debug for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Limit::NONE" } else { "Limit(..)" })
    }
}

/// The progress of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) done: Bytes,
    pub(crate) total: Bytes,
}
