//! A thread that makes backups ahead of sleeps.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lowtide_pool::{AheadNext, AheadReport, Pool};
use lowtide_types::{Bytes, debug_as};

use crate::background::Background;

/// What one step copies at most: a sleep that is asked for meanwhile waits for its end.
const STEP: Bytes = Bytes::mib(8);
/// The rest after a round that found nothing to do, or no room.
const LONG_REST: Duration = Duration::from_secs(1);
/// The rest while a sleep or a wake is under way.
const SHORT_REST: Duration = Duration::from_millis(20);

/// The share of its time that an [`AheadThread`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadShare(u32);

/// A share of the time that is not from 1 to 100 percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a share of {given} % is not possible: backups ahead of time take from 1 to 100 % of a thread's time"
)]
pub struct BadShare {
    /// What was asked for.
    pub given: i64,
}

impl AheadShare {
    /// Returns a share of 1 to 100 percent.
    ///
    /// # Errors
    /// If the number is another.
    pub fn percent(given: i64) -> Result<AheadShare, BadShare> {
        let share = u32::try_from(given).ok().filter(|share| (1..=100).contains(share));
        share.map(AheadShare).ok_or(BadShare { given })
    }
}

/// A thread that backs up pages of a pool while the program runs, [step by step](Pool::back_up_some), so that
/// a sleep finds little to copy. It works for a share of its time and rests for the remainder, and so takes no
/// more than that share of the link. Dropping it ends it, after the step that may be under way.
///
/// The pool's policy says how much host memory backups may take, and must say so for any to be made.
///
/// ```
/// use lowtide::{AheadShare, AheadThread};
/// use lowtide::device::{Bytes, Device, HostOptions};
/// use lowtide::pool::{Policy, Pool, Scope};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let budget = Some(Bytes::mib(64));
/// let device = Device::host(HostOptions { budget, ..HostOptions::default() })?;
/// let policy = Policy::default().ahead_most(Bytes::gib(16));
/// let pool = Pool::builder(&device).policy(policy).build()?;
/// let ahead = AheadThread::start(&pool, AheadShare::percent(25)?)?; // a quarter of the time
/// // … the program works …
/// pool.sleep(Scope::Whole)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it ends it"]
pub struct AheadThread {
    last: Arc<Mutex<Option<AheadReport>>>,
    _thread: Background,
}

impl AheadThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the machine cannot start a thread.
    pub fn start(pool: &Pool, share: AheadShare) -> std::io::Result<AheadThread> {
        let last: Arc<Mutex<Option<AheadReport>>> = Arc::default();
        let (pool, report) = (pool.clone(), Arc::clone(&last));
        let thread = Background::start("lowtide-ahead", move |go_on_after| {
            let mut rest = Duration::ZERO;
            while go_on_after(rest) {
                let began = Instant::now();
                rest = match pool.back_up_some(STEP) {
                    Ok(done) => {
                        *report.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                        rest_after(done.next, began.elapsed(), share)
                    }
                    Err(error) if pool.health().is_err() => {
                        tracing::error!(%error, "no more backups are made ahead");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a backup ahead of time failed; the next step goes on");
                        LONG_REST
                    }
                };
            }
        })?;
        Ok(AheadThread { last, _thread: thread })
    }

    /// Returns the result of the last step, if there was one.
    pub fn last(&self) -> Option<AheadReport> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rest_after(next: AheadNext, took: Duration, AheadShare(share): AheadShare) -> Duration {
    match next {
        AheadNext::More => took * (100 - share) / share,
        AheadNext::Busy => SHORT_REST,
        _ => LONG_REST,
    }
}

debug_as!(AheadThread, |it| "AheadThread({:?})", it.last());

#[cfg(test)]
mod tests {
    use lowtide_device::{Device, HostOptions};
    use lowtide_pool::{Policy, Scope};

    use super::*;

    #[test]
    fn rests_make_the_share() {
        let took = Duration::from_millis(3);
        let share = |percent| AheadShare::percent(percent).unwrap();
        let rest = |percent| rest_after(AheadNext::More, took, share(percent));
        assert_eq!(rest(25), Duration::from_millis(9));
        assert_eq!(rest(75), Duration::from_millis(1));
        assert_eq!(rest(100), Duration::ZERO);
        assert_eq!(rest(1), Duration::from_millis(297));
        assert_eq!(rest_after(AheadNext::Nothing, took, share(25)), LONG_REST);
        assert_eq!(rest_after(AheadNext::Busy, took, share(25)), SHORT_REST);
    }

    #[test]
    fn a_share_is_from_1_to_100_percent_and_another_is_refused_with_the_range() {
        for given in [0, 101, -1, i64::MAX] {
            let refusal = AheadShare::percent(given).unwrap_err();
            let text = refusal.to_string();
            assert!(
                text.contains(&given.to_string()) && text.contains("from 1 to 100 %"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_thread_saves_what_a_sleep_would_copy_and_ends_when_it_is_dropped() {
        let budget = Some(Bytes::mib(64));
        let device = Device::host(HostOptions { budget, small_pages: true }).unwrap();
        let policy = Policy::default().ahead_most(Bytes::gib(1));
        let pool = Pool::builder(&device).policy(policy).build().unwrap();
        let block = pool.block(Bytes::mib(12)).unwrap();
        block.fill(3).unwrap();
        let ahead = AheadThread::start(&pool, AheadShare::percent(50).unwrap()).unwrap();
        while ahead.last().is_none_or(|report| report.next != AheadNext::Nothing) {
            std::thread::yield_now();
        }
        assert_eq!(pool.sleep(Scope::Whole).unwrap().copied, Bytes::ZERO);
        pool.wake(Scope::Whole).unwrap();
        drop(ahead);
        block.write(Bytes(5), &[1]).unwrap();
        assert_eq!(pool.sleep(Scope::Whole).unwrap().copied, Bytes::mib(2), "nobody saves it now");
    }
}
