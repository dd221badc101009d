//! The arbiter: what it knows and hears.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{Join, Need, ToAgent, ToArbiter};

use super::amounts::Amounts;
use super::family::{Families, Family, FamilyId};
use super::member::{Member, MemberId};
use super::order::{Order, Outcome, Part};
use super::room::Room;
use super::turns::{Moves, Rule};
use super::waits::Waiting;

/// The pause after a grant that failed: the number that it came from may still be the same.
const RETRY: Duration = Duration::from_millis(100);

/// Something that happened to a process that shares.
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
    pub(super) families: Families,
    /// The family of each process.
    pub(super) kin: BTreeMap<MemberId, FamilyId>,
    pub(super) waits: Vec<Waiting>,
    pub(super) room: Room,
    pub(super) moves: Moves,
    pub(super) orders: u64,
    /// What is to be told whom at the next decision.
    pub(super) untold: Vec<(MemberId, ToAgent)>,
    /// The processes that ask what of a device cannot be moved, with what they have there, and since when.
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

    /// Takes note of what happened to a process.
    pub fn hear(&mut self, now: Duration, id: MemberId, event: Event) {
        match event {
            Event::Joined { target, join } => self.join(now, id, target, join),
            Event::Stopped(is_stopped) => {
                if let Some(member) = self.member_mut(id) {
                    member.is_stopped = is_stopped;
                }
            }
            Event::Left => self.leave(now, id),
            Event::Said(said) => {
                if let Some(member) = self.member_mut(id) {
                    member.answered();
                    self.hear_agent(now, id, said);
                }
            }
        }
    }

    fn join(&mut self, now: Duration, id: MemberId, target: Target, join: Join) {
        let is_kin = |family: &Family| {
            join.family.is_some()
                && family.join.family == join.family
                && self.without != Some(Rule::Families)
        };
        let known = self.families.iter().find(|(_, family)| is_kin(family)).map(|(id, _)| *id);
        let family = known.unwrap_or(FamilyId(id.0));
        self.kin.insert(id, family);
        let member = Member::new(now, target, join.command.clone());
        // It has no claim on the time of others before it came.
        let served = self.most_served();
        let family = self.families.entry(family).or_insert_with(|| Family::new(now, join, served));
        family.members.insert(id, member);
    }

    fn leave(&mut self, now: Duration, id: MemberId) {
        let Some((at, family)) = self.family_mut(id) else { return };
        let member = family.members.remove(&id);
        let is_last = family.members.is_empty();
        if let Some(order) = &mut family.order {
            order.parts.remove(&id);
        }
        self.expected.retain(|pid| member.as_ref().is_none_or(|it| it.target.pid != *pid));
        self.waits.retain(|wait| wait.member != id);
        self.questions.retain(|(member, ..)| *member != id);
        self.room.left_by(id);
        self.kin.remove(&id);
        if is_last {
            self.families.remove(&at);
        } else {
            self.go_on(now, at);
        }
    }

    fn hear_agent(&mut self, now: Duration, id: MemberId, said: ToArbiter) {
        let Some((at, family)) = self.family_mut(id) else { return };
        match said {
            ToArbiter::Report(report) => {
                family.hear(now, id, report);
                let pid = family.members.get(&id).map(|member| member.target.pid);
                self.expected.retain(|expected| Some(*expected) != pid);
            }
            ToArbiter::Need(need) => self.need(now, id, at, need),
            ToArbiter::Fixed(own) => self.questions.push((id, own, now)),
            ToArbiter::Drop { ticket } => {
                self.room.dropped(id, ticket);
                self.waits.retain(|wait| !wait.is_of(id, ticket));
            }
            ToArbiter::Used { ticket } => {
                self.room.used(now, id, ticket);
                let since = self.waits_of(id, ticket).find_map(|wait| wait.moving_since);
                if let (Some((since, copies)), Some(family)) = (since, self.families.get_mut(&at)) {
                    family.came(now.saturating_sub(since), copies + family.wake());
                }
                self.waits.retain(|wait| !wait.is_of(id, ticket));
            }
            ToArbiter::Failed { ticket } => {
                self.room.dropped(id, ticket);
                for wait in self.waits_of(id, ticket) {
                    (wait.is_granted, wait.retry_at) = (false, now + RETRY);
                }
            }
            ToArbiter::Held { order } => self.note(now, id, order, Part::Held, None),
            ToArbiter::Gave { order, freed, took_ms } => {
                let freed = Amounts::from(freed.as_slice());
                let part = Part::Gave(freed, Duration::from_millis(took_ms));
                self.note(now, id, order, part, None);
            }
            ToArbiter::Refused { order, reason, tried_ms } => {
                let part = Part::Refused(Duration::from_millis(tried_ms));
                self.note(now, id, order, part, Some(reason));
            }
        }
    }

    /// Takes note of how far a process has come with an order.
    fn note(
        &mut self,
        now: Duration,
        id: MemberId,
        number: u64,
        part: Part,
        reason: Option<String>,
    ) {
        let Some((at, family)) = self.family_mut(id) else { return };
        let name = match family.members.get(&id) {
            Some(member) if family.members.len() > 1 => format!("process {}: ", member.target.pid),
            _ => String::new(),
        };
        let Some(order) = family.order.as_mut().filter(|it| it.number == number) else { return };
        order.note(id, part);
        order.refused = order.refused.take().or(reason.map(|reason| name + &reason));
        self.go_on(now, at);
    }

    /// Goes on with the order of a program, as far as its processes have come.
    fn go_on(&mut self, now: Duration, at: FamilyId) {
        let Some(family) = self.families.get_mut(&at) else { return };
        let Some(order) = &mut family.order else { return };
        self.untold.extend(order.next());
        let Some(Outcome { freed, took, tried }) = order.outcome() else { return };
        let left = order.left_by();
        let Some(Order { number, call, served, refused, .. }) = family.order.take() else { return };
        if refused.is_some() || freed.total() <= 0 {
            let nothing = || "the driver's number shows nothing".to_owned();
            family.failed(now, refused.unwrap_or_else(nothing), tried.max(took));
            self.moves.end(number, took);
            // Those that gave way nevertheless come back.
            return family.set_due(|id| left.contains(&id));
        }
        family.gave();
        family.served += served;
        self.moves.end(number, took + family.wake());
        for wait in self.waits_of(call.0, call.1) {
            let (since, copies) = wait.moving_since.unwrap_or((now, Duration::ZERO));
            let since = since.min(now.saturating_sub(took));
            wait.moving_since = Some((since, copies.max(took)));
        }
    }

    /// Takes a call that waits. One that waits already keeps its place, and one that is granted its grant: the agent
    /// says `failed` if that was too little.
    fn need(&mut self, now: Duration, id: MemberId, family: FamilyId, need: Need) {
        match self.waits.iter_mut().find(|wait| wait.is_of(id, need.ticket)) {
            Some(wait) if wait.is_granted => {}
            Some(wait) => wait.need = need,
            None => self.waits.push(Waiting::new(now, id, family, need)),
        }
    }

    /// Returns the longest time for which others have waited for one program.
    pub(super) fn most_served(&self) -> Duration {
        self.families.values().map(|family| family.served).max().unwrap_or_default()
    }

    /// Returns all processes.
    pub(super) fn members(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.families.values().flat_map(|family| &family.members).map(|(id, member)| (*id, member))
    }

    pub(super) fn members_mut(&mut self) -> impl Iterator<Item = (MemberId, &mut Member)> {
        let families = self.families.values_mut();
        families.flat_map(|family| &mut family.members).map(|(id, member)| (*id, member))
    }

    pub(super) fn member(&self, id: MemberId) -> Option<&Member> {
        self.families.get(self.kin.get(&id)?)?.members.get(&id)
    }

    fn member_mut(&mut self, id: MemberId) -> Option<&mut Member> {
        self.family_mut(id)?.1.members.get_mut(&id)
    }

    fn family_mut(&mut self, id: MemberId) -> Option<(FamilyId, &mut Family)> {
        let at = *self.kin.get(&id)?;
        Some((at, self.families.get_mut(&at)?))
    }

    fn waits_of(&mut self, id: MemberId, ticket: u64) -> impl Iterator<Item = &mut Waiting> {
        self.waits.iter_mut().filter(move |wait| wait.is_of(id, ticket))
    }

    /// Asks every process for a report.
    pub fn look_at_all(&mut self, now: Duration) -> Vec<(MemberId, ToAgent)> {
        let asked = self.members_mut().filter(|(_, member)| member.can_be_asked());
        let asked = asked.map(|(id, member)| {
            member.asked(now);
            (id, ToAgent::Look)
        });
        asked.collect()
    }

    /// Returns whether every process has reported since a moment.
    pub fn has_heard_all_since(&self, moment: Duration) -> bool {
        self.members().all(|(_, member)| member.reported >= moment && member.report.is_some())
    }

    /// Returns whether a call waits or holds a lease, a question has no answer, or something is to be told: then
    /// [`Arbiter::decide`] is to be called after each event, and at least each 50 ms.
    pub fn is_asked(&self) -> bool {
        !self.waits.is_empty() || !self.questions.is_empty() || !self.untold.is_empty()
    }

    /// Returns the processes that are late with an answer: the kernel is to be asked whether they are stopped.
    pub fn late(&self, now: Duration) -> Vec<(MemberId, Target)> {
        let late = self.members().filter(|(_, it)| it.is_late(now) || it.is_stopped);
        late.map(|(id, member)| (id, member.target)).collect()
    }
}
