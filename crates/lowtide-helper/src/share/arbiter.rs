//! The arbiter: what it knows and hears.

use std::collections::BTreeSet;
use std::time::Duration;

use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{Join, Need, Queue, ToAgent, ToArbiter};

use super::amounts::Amounts;
use super::member::{Member, MemberId, Order};
use super::room::{DeviceFree, Room};
use super::turns::{Moves, Rule};
use super::waits::{Members, Waiting};
use super::words;

/// The pause after a grant that failed: the number that it came from may still be the same.
const RETRY: Duration = Duration::from_millis(100);

/// Something that happened to a program that shares.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It joined, as the process that the kernel named.
    Joined {
        /// The process.
        target: Target,
        /// What it said.
        join: Join,
    },
    /// Its agent said something.
    Said(ToArbiter),
    /// The kernel says that it is stopped, or is not any more.
    Stopped(bool),
    /// Its connection ended.
    Left,
}

/// Decides whose memory is on the devices.
#[derive(Debug, Default)]
pub struct Arbiter {
    pub(super) members: Members,
    pub(super) waits: Vec<Waiting>,
    pub(super) room: Room,
    pub(super) moves: Moves,
    pub(super) orders: u64,
    /// The programs that ask what of a device cannot be moved, with what they have there, and since when.
    pub(super) questions: Vec<(MemberId, DeviceBytes, Duration)>,
    /// The processes whose agents are to report before something is granted.
    pub(super) expected: BTreeSet<u32>,
    pub(super) without: Option<Rule>,
}

impl Arbiter {
    /// Makes an arbiter that begins at the moment zero. It grants nothing until these processes have reported, or
    /// two seconds have passed: an arbiter before it may have granted something.
    pub fn new(expected: impl IntoIterator<Item = u32>) -> Arbiter {
        Arbiter { expected: expected.into_iter().collect(), ..Arbiter::default() }
    }

    /// Takes a rule away, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without(self, rule: Rule) -> Arbiter {
        Arbiter { without: Some(rule), ..self }
    }

    /// Takes note of what happened to a program.
    pub fn hear(&mut self, now: Duration, id: MemberId, event: Event) {
        match event {
            Event::Joined { target, join } => {
                // It has no claim on the time of others before it came.
                let served = self.most_served();
                self.members.insert(id, Member::new(now, target, join, served));
            }
            Event::Stopped(is_stopped) => {
                self.members.entry(id).and_modify(|member| member.is_stopped = is_stopped);
            }
            Event::Left => {
                if let Some(member) = self.members.remove(&id) {
                    self.expected.remove(&member.target.pid);
                }
                self.waits.retain(|wait| wait.member != id);
                self.questions.retain(|(member, ..)| *member != id);
                self.room.left_by(id);
            }
            Event::Said(said) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.answered();
                    self.hear_agent(now, id, said);
                }
            }
        }
    }

    fn hear_agent(&mut self, now: Duration, id: MemberId, said: ToArbiter) {
        let Some(member) = self.members.get_mut(&id) else { return };
        match said {
            ToArbiter::Report(report) => {
                member.hear(now, report);
                self.expected.remove(&member.target.pid);
            }
            ToArbiter::Need(need) => self.need(now, id, need),
            ToArbiter::Fixed(own) => self.questions.push((id, own, now)),
            ToArbiter::Drop { ticket } => {
                self.room.dropped(id, ticket);
                self.waits.retain(|wait| !(wait.member == id && wait.need.ticket == ticket));
            }
            ToArbiter::Used { ticket } => {
                self.room.used(now, id, ticket);
                let since = self.waits_of(id, ticket).find_map(|wait| wait.moving_since);
                if let (Some((since, copies)), Some(member)) = (since, self.members.get_mut(&id)) {
                    member.came(now.saturating_sub(since), copies + member.wake());
                }
                self.waits.retain(|wait| !(wait.member == id && wait.need.ticket == ticket));
            }
            ToArbiter::Failed { ticket } => {
                self.room.dropped(id, ticket);
                for wait in self.waits_of(id, ticket) {
                    (wait.is_granted, wait.retry_at) = (false, now + RETRY);
                }
            }
            ToArbiter::Gave { order, freed, took_ms } => {
                let order = member.order.take_if(|it| it.number == order);
                let Some(Order { number, call, served, .. }) = order else { return };
                if Amounts::from(freed.as_slice()).total() > 0 {
                    member.gave();
                    member.served += served;
                    let took = Duration::from_millis(took_ms);
                    self.moves.end(number, took + member.wake());
                    for wait in self.waits_of(call.0, call.1) {
                        let (since, copies) = wait.moving_since.unwrap_or((now, Duration::ZERO));
                        let since = since.min(now.saturating_sub(took));
                        wait.moving_since = Some((since, copies.max(took)));
                    }
                } else {
                    let reason = "the driver's number shows nothing".to_owned();
                    member.failed(now, reason, Duration::from_millis(took_ms));
                }
            }
            ToArbiter::Refused { order, reason, tried_ms } => {
                let Some(_) = member.order.take_if(|it| it.number == order) else { return };
                member.failed(now, reason, Duration::from_millis(tried_ms));
                self.moves.end(order, Duration::ZERO);
            }
        }
    }

    /// Takes a call that waits. One that waits already keeps its place, and one that is granted its grant: the agent
    /// says `failed` if that was too little.
    fn need(&mut self, now: Duration, id: MemberId, need: Need) {
        match self.waits.iter_mut().find(|it| it.member == id && it.need.ticket == need.ticket) {
            Some(wait) if wait.is_granted => {}
            Some(wait) => wait.need = need,
            None => self.waits.push(Waiting::new(now, id, need)),
        }
    }

    /// Returns the longest time for which others have waited for one program.
    pub(super) fn most_served(&self) -> Duration {
        self.members.values().map(|member| member.served).max().unwrap_or_default()
    }

    fn waits_of(&mut self, id: MemberId, ticket: u64) -> impl Iterator<Item = &mut Waiting> {
        self.waits.iter_mut().filter(move |wait| wait.member == id && wait.need.ticket == ticket)
    }

    /// Asks every program for a report.
    pub fn look_at_all(&mut self, now: Duration) -> Vec<(MemberId, ToAgent)> {
        let asked = self.members.iter_mut().filter(|(_, member)| member.can_be_asked());
        let asked = asked.map(|(id, member)| {
            member.asked(now);
            (*id, ToAgent::Look)
        });
        asked.collect()
    }

    /// Returns whether every program has reported since a moment.
    pub fn has_heard_all_since(&self, moment: Duration) -> bool {
        self.members.values().all(|member| member.reported >= moment && member.report.is_some())
    }

    /// Returns whether a call waits or holds a lease, or a question has no answer: then [`Arbiter::decide`] is to be called after each event,
    /// and at least each 50 ms.
    pub fn is_asked(&self) -> bool {
        !self.waits.is_empty() || !self.questions.is_empty()
    }

    /// Returns the programs that are late with an answer: the kernel is to be asked whether they are stopped.
    pub fn late(&self, now: Duration) -> Vec<(MemberId, Target)> {
        let late = self.members.iter().filter(|(_, it)| it.is_late(now) || it.is_stopped);
        late.map(|(id, member)| (*id, member.target)).collect()
    }

    /// Returns the queue for `lowtide status`, with the driver's numbers of this moment.
    pub fn queue(&mut self, now: Duration, numbers: &[DeviceFree]) -> Queue {
        self.room.read(now, numbers);
        words::queue(&self.members, &self.waits, &self.room, now)
    }
}
