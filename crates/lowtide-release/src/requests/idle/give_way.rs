//! For whom a release is put off, and for how long.
//!
//! The age of a process decides, so each puts releases off once, while it is young. A machine on which
//! something starts all the time must not keep memory for ever: after ten minutes the release runs, and the
//! processes that were young then do not put off another.

use std::time::Duration;

use lowtide_device::neighbours::Neighbour;

/// The longest time for which one release is put off.
const MOST: Duration = Duration::from_secs(10 * 60);
/// The time between two looks at the other processes: they may end before they are old.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A release that is put off, if one is, and the processes that have had their time.
#[derive(Debug, Default)]
pub(super) struct PuttingOff {
    now: Option<PutOff>,
    /// The processes that were young when a release had been put off for too long: PID and start.
    had_their_time: Vec<(u32, u64)>,
}

/// A release that is put off.
#[derive(Debug)]
struct PutOff {
    since: Duration,
    look_at: Duration,
    to: Neighbour,
}

impl PuttingOff {
    /// Decides whether a release is put off, and for which process. `limit` is the age up to which one counts.
    pub(super) fn decide(
        &mut self,
        now: Duration,
        limit: Duration,
        neighbours: Vec<Neighbour>,
    ) -> Option<Neighbour> {
        let key = |one: &Neighbour| (one.pid, one.start_ticks);
        self.had_their_time.retain(|had| neighbours.iter().any(|one| key(one) == *had));
        let is_young =
            |one: &Neighbour| one.age < limit && !self.had_their_time.contains(&key(one));
        let young: Vec<Neighbour> = neighbours.into_iter().filter(is_young).collect();
        let since = self.now.take().map_or(now, |put_off| put_off.since);
        if now.saturating_sub(since) >= MOST {
            self.had_their_time.extend(young.iter().map(key));
            return None;
        }
        let to = young.into_iter().min_by_key(|one| one.age)?;
        self.now = Some(PutOff { since, look_at: now + LOOK_EVERY, to: to.clone() });
        Some(to)
    }

    /// Returns the process for which a release is put off until the next look.
    pub(super) fn still(&self, now: Duration) -> Option<Neighbour> {
        let put_off = self.now.as_ref().filter(|put_off| now < put_off.look_at)?;
        Some(put_off.to.clone())
    }

    /// Ends the row: work came, so the release is not late any more.
    pub(super) fn end(&mut self) {
        self.now = None;
    }
}
