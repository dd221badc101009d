//! A call that waits for room.

use std::time::{Duration, Instant};

use lowtide_device::tallies;
use lowtide_proto::Ask;
use lowtide_types::{Act, Bytes};

use super::table::{Arbiter, Room, State, Table, Unsaid, Wait, Wanted};
use crate::gate;
use crate::say::say;
use crate::sleep::{agent, is_exiting};

/// The time after which a person is told for whom a call waits, and the time between two such lines of a process.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
const NOTICE_EVERY: Duration = Duration::from_secs(10);
/// The longest time between two looks of a thread that waits.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which calls of a process wait that has begun to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// The most that is guessed for a call. Each grant that fails doubles the guess.
const GUESS_MOST: Bytes = Bytes::mib(512);
/// The grants that a call may fail with. One that fails so often fails for another reason than room.
const FAILURES_MOST: u32 = 10;

/// The reason why a wait has ended without room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The arbiter says that there will be none, for this reason.
    Refused(String),
    /// It took too long; what was waited for.
    Late(String),
    /// Nobody decides who has room: calls do as without `--share`.
    Alone,
}

impl Ended {
    /// Returns the reason for people; `None` where a call does as it would alone.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Ended::Refused(why) | Ended::Late(why) => Some(why),
            Ended::Alone => None,
        }
    }
}

/// A call that waits for room, or has a grant. Its end gives the grant back.
pub(crate) struct Asking<'room> {
    room: &'room Room,
    ticket: u64,
    began: Instant,
    failures: u32,
    has_ended: bool,
}

impl Room {
    /// Asks for room for a call that has left the gate, or cannot; `None` where the process shares with nobody.
    pub(super) fn ask(&self, call: &str, want: Wanted) -> Option<Asking<'_>> {
        let captures = agent::get()?.memory.is_capturing();
        let call = call.trim_end_matches("_ptsz").trim_end_matches("_v2").to_owned();
        let can_leave = !captures && !gate::is_inside();
        Some(self.begin(|_| None, Wait::new(call, Some(want), None, can_leave)))
    }

    /// Asks for room for a process that is to wake, or to be resumed. All its threads wait with one ticket.
    pub(crate) fn ask_to_come_back(&self, ask: Ask) -> Asking<'_> {
        let call = if ask == Ask::Wake { "wake" } else { "resume" };
        let same = |table: &Table| {
            let mut all = table.waits.iter();
            all.find(|(_, wait)| wait.back == Some(ask)).map(|(ticket, _)| *ticket)
        };
        self.begin(same, Wait::new(call.to_owned(), None, Some(ask), true))
    }

    fn begin(&self, same: impl FnOnce(&Table) -> Option<u64>, wait: Wait) -> Asking<'_> {
        let mut table = self.table();
        let ticket = same(&table).unwrap_or_else(|| {
            table.last += 1;
            table.last
        });
        table.waits.entry(ticket).or_insert(wait).threads += 1;
        drop(table);
        self.ring();
        Asking { room: self, ticket, began: Instant::now(), failures: 0, has_ended: false }
    }
}

impl Asking<'_> {
    /// Waits until there is room.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn wait(&self) -> Result<(), Ended> {
        let (mut limit, mut was_told) = (self.room.limit, false);
        let mut table = self.room.table();
        loop {
            let passed = self.began.elapsed();
            if is_exiting() && limit == self.room.limit {
                limit = limit.min(passed + EXIT_LIMIT);
            }
            // Another thread of the same ticket has taken its memory: the process is back.
            let Some(wait) = table.waits.get(&self.ticket) else { return Ok(()) };
            match &wait.state {
                State::Granted(_) => return Ok(()),
                State::Refused(why) => return Err(Ended::Refused(why.clone())),
                State::Waiting if table.arbiter == Arbiter::Absent => {
                    return Err(Ended::Alone);
                }
                State::Waiting => {}
            }
            let (call, said) = (wait.call.clone(), wait.said.clone());
            if passed >= limit {
                let why = said.map_or_else(String::new, |said| format!(" for {}", said.why));
                return Err(Ended::Late(format!("it has waited {} s{why}", passed.as_secs())));
            }
            if passed >= NOTICE_AFTER
                && !was_told
                && let Some(said) = said
            {
                was_told = true;
                if table.last_notice.is_none_or(|last| last.elapsed() >= NOTICE_EVERY) {
                    table.last_notice = Some(Instant::now());
                    drop(table);
                    let ends = said
                        .command
                        .map_or_else(String::new, |it| format!("; `{it}` ends the wait"));
                    say!("{call} waits for room: {}{ends}", said.why);
                    table = self.room.table();
                    continue;
                }
            }
            let next = if passed < NOTICE_AFTER { NOTICE_AFTER } else { limit };
            table = self
                .room
                .wait(table, (next.saturating_sub(passed)).clamp(Duration::from_millis(1), LOOK));
        }
    }

    /// Says that there was no room, although it was granted; the wait goes on. Returns false if it does not: that has
    /// happened too often, or the process is back.
    pub(crate) fn failed(&mut self) -> bool {
        self.failures += 1;
        if self.failures > FAILURES_MOST {
            return false;
        }
        let mut table = self.room.table();
        let Some(wait) = table.waits.get_mut(&self.ticket) else { return false };
        if matches!(wait.state, State::Granted(_)) {
            if let Some(want) = wait.want.as_mut().filter(|want| want.is_guess) {
                want.bytes = Bytes(want.bytes.0 * 2).min(GUESS_MOST);
            }
            wait.state = State::Waiting;
            wait.unsaid = Unsaid::Failure;
        }
        drop(table);
        self.room.ring();
        true
    }

    /// Ends the wait; `has_taken` says whether the call has its memory.
    pub(crate) fn end(mut self, has_taken: bool) {
        self.leave(has_taken);
    }

    fn leave(&mut self, has_taken: bool) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.room.end(self.ticket, has_taken);
        tallies::took(Act::Wait, self.began.elapsed().as_secs_f64());
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.leave(false);
    }
}
