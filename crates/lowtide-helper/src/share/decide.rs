//! The decisions: who is granted room, who makes it, who is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use lowtide_proto::helper::DeviceBytes;
use lowtide_proto::share::{Give, ToAgent, Wait, Way};

use super::amounts::{Amounts, unsigned};
use super::arbiter::Arbiter;
use super::family::{Family, FamilyId};
use super::member::{Member, MemberId};
use super::order::{Order, Part};
use super::plan::{Giver, plan};
use super::room::DeviceFree;
use super::turns::CATCHING_UP;
use super::waits::{Waiting, order};
use super::words::{self, Reason};

/// The time for which a new arbiter grants nothing, unless every agent has reported.
const BEGINNING: Duration = Duration::from_secs(2);
/// The time between two looks at programs while a call waits.
const LOOK: Duration = Duration::from_millis(50);
/// The time for which a new call waits for reports before somebody is told to give way for it.
const LOOKED: Duration = Duration::from_millis(100);
/// The time for which the numbers must say that a call can never have its room. They may be late, and a process
/// that ended may still be giving its memory back.
const HOPELESS: Duration = Duration::from_secs(2);

/// The time in which an idle program has given way.
const SOON: Duration = Duration::from_secs(1);

/// What is left while the calls are gone through in their order.
struct Turn {
    /// What can be granted now.
    now: Amounts,
    /// What will be left when all calls so far have their room.
    later: Amounts,
    /// The programs that give way for earlier calls, and those of the earlier calls.
    taken: BTreeSet<FamilyId>,
    told: Vec<(MemberId, ToAgent)>,
}

impl Arbiter {
    /// Decides with the driver's numbers of this moment. Returns what to tell whom.
    pub fn decide(&mut self, now: Duration, numbers: &[DeviceFree]) -> Vec<(MemberId, ToAgent)> {
        self.room.read(now, numbers);
        self.room.expire(now);
        for wait in &mut self.waits {
            wait.is_granted &= self.room.is_lent_to(wait.member);
        }
        let left = self.room.left().minus(&self.promised());
        let mut told = std::mem::take(&mut self.untold);
        told.append(&mut self.look(now));
        let later = self.sure(now, &left);
        let mut turn = Turn { later, now: left, taken: BTreeSet::new(), told };
        if now >= BEGINNING || self.has_heard_all() {
            let order = order(&self.waits, now, &self.families, self.without);
            let mut refused = Vec::new();
            for (index, _) in order {
                if let Some(why) = self.serve(now, index, &mut turn) {
                    let wait = &self.waits[index];
                    refused.push((wait.member, wait.need.ticket));
                    let refuse = ToAgent::Refuse { ticket: wait.need.ticket, why };
                    turn.told.push((wait.member, refuse));
                }
            }
            self.waits.retain(|it| !refused.contains(&(it.member, it.need.ticket)));
            self.answer(now, &mut turn);
        }
        turn.told
    }

    /// Returns what is free without what may be memory of orders under way, and what those orders will free.
    fn sure(&self, now: Duration, left: &Amounts) -> Amounts {
        let mut sure = left.clone();
        let orders = || self.families.values().filter_map(|it| Some((it, it.order.as_ref()?)));
        for (_, order) in orders() {
            for (uuid, _) in order.gain.iter() {
                sure.put(uuid, sure.at(uuid).min(order.left.at(uuid)));
            }
        }
        let under_way = orders().filter(|(family, _)| family.obstacle(now).is_none());
        under_way.for_each(|(_, order)| sure.add(&order.gain));
        sure
    }

    fn has_heard_all(&self) -> bool {
        self.expected.is_empty() && self.families.values().all(Family::has_reported)
    }

    /// Answers what of a device cannot be moved, once all others have reported, or do not.
    fn answer(&mut self, now: Duration, turn: &mut Turn) {
        for (id, own, since) in std::mem::take(&mut self.questions) {
            let Some(family) = self.kin.get(&id) else { continue };
            let mut members = self.members();
            let is_known = members
                .all(|(other, it)| other == id || (it.reported >= since && it.report.is_some()));
            drop(members);
            let Some(device) = self.room.devices.get(&own.uuid) else { continue };
            if is_known || now >= since + HOPELESS {
                // Nor does what others of its family have move for it.
                let kin = self
                    .members()
                    .filter(|(other, _)| *other != id && self.kin.get(other) == Some(family));
                let kin = kin.map(|(_, it)| it.held().at(&own.uuid) + it.back().at(&own.uuid));
                let fixed = self.fixed(*family, device, own.bytes) + kin.sum::<i64>();
                let bytes = unsigned(fixed);
                turn.told.push((id, ToAgent::Fixed(DeviceBytes { bytes, ..own })));
            } else {
                self.questions.push((id, own, since));
            }
        }
    }

    /// Asks processes for reports while a call waits, or a question.
    fn look(&mut self, now: Duration) -> Vec<(MemberId, ToAgent)> {
        let waiting = self.waits.iter().filter(|wait| !wait.is_granted).map(|wait| wait.since);
        let questions = self.questions.iter().map(|(_, _, since)| *since);
        let Some(newest) = waiting.chain(questions).max() else { return Vec::new() };
        let is_due = |it: &Member| it.reported < newest || now >= it.reported + LOOK;
        let due = self.members_mut().filter(|(_, it)| it.can_be_asked() && is_due(it));
        let ask = |(id, member): (MemberId, &mut Member)| {
            member.asked(now);
            (id, ToAgent::Look)
        };
        due.map(ask).collect()
    }

    /// Grants a call its room, or has somebody make it. Returns why it is refused, if it is.
    fn serve(&mut self, now: Duration, index: usize, turn: &mut Turn) -> Option<String> {
        if let Some((why, is_certain)) = self.hopeless(&self.waits[index]) {
            let since = *self.waits[index].hopeless_since.get_or_insert(now);
            if is_certain || now >= since + HOPELESS {
                return Some(why);
            }
        } else {
            self.waits[index].hopeless_since = None;
        }
        // It would hold its lease for nothing. It keeps its place.
        let wait = &self.waits[index];
        if self.member(wait.member)?.is_deaf(now) {
            return None;
        }
        let (extra, own) = (self.room_of(wait), self.promise(wait.member));
        // What is kept for its process is there for it, and for nobody else.
        turn.now.add(&own);
        turn.later.add(&own);
        let why = if turn.later.covers(&extra) {
            self.grant_or_wait(now, index, &extra, turn);
            None
        } else {
            self.make_room(now, index, (&extra, &own), turn)
        };
        if !self.waits[index].is_granted {
            turn.now = turn.now.minus(&own);
        }
        why
    }

    /// Grants a call its room, or has it wait for what is on its way.
    fn grant_or_wait(&mut self, now: Duration, index: usize, extra: &Amounts, turn: &mut Turn) {
        let wait = &self.waits[index];
        let Some(family) = self.families.get(&wait.family) else { return };
        turn.later = turn.later.minus(extra);
        turn.taken.insert(wait.family);
        // Nobody is granted something while its memory leaves: what it has is not certain.
        let is_settled = family.order.is_none() && !self.room.is_lent_to(wait.member);
        let wake = family.wake();
        let mut can_be_granted = is_settled && now >= wait.retry_at && turn.now.covers(extra);
        if can_be_granted {
            let since = *self.waits[index].room_since.get_or_insert(now);
            can_be_granted = !self.is_about_to_grow(now, since, extra);
        } else {
            self.waits[index].room_since = None;
        }
        if can_be_granted {
            self.grant(now, index, extra, turn);
        } else {
            let reason = words::for_orders(&self.families, extra, wake);
            self.tell(index, reason, turn);
        }
    }

    /// Returns whether memory was leaving devices that a call needs when there was room for it, and has not been for
    /// long. A number of the middle of that could not show later that the grant was used, and the next call would
    /// wait for [`super::LATE`].
    fn is_about_to_grow(&self, now: Duration, room_since: Duration, extra: &Amounts) -> bool {
        let mut orders = self.families.values().filter_map(|family| family.order.as_ref());
        orders.any(|order| {
            order.given <= room_since
                && now < order.given + SOON
                && extra.iter().any(|(uuid, bytes)| bytes > 0 && order.gain.at(uuid) > 0)
        })
    }

    /// Has programs give way for a call, once all that it needs can; `own` is what is kept for it. Returns why it is
    /// refused, if it is.
    fn make_room(
        &mut self,
        now: Duration,
        index: usize,
        (extra, own): (&Amounts, &Amounts),
        turn: &mut Turn,
    ) -> Option<String> {
        let wait = &self.waits[index];
        let (id, can_leave) = (wait.family, wait.need.can_leave);
        let missing = extra.minus(&turn.later).positive();
        let is_now = |givers: &[Giver]| givers.iter().all(|giver| giver.from <= now);
        let is_known = now >= wait.since + LOOKED || self.is_known(now, wait);
        let found = plan(&missing, now, &self.candidates(now, wait, &turn.taken));
        let Some(givers) = found.filter(|givers| can_leave || is_now(givers)) else {
            let reason = words::for_obstacles(&self.families, &self.room, wait, &missing, now);
            if !can_leave && is_known {
                let why = reason.why;
                return Some(format!("it cannot wait here, and nobody gives way now: {why}"));
            }
            turn.later = turn.later.minus(own);
            self.tell(index, reason, turn);
            return None;
        };
        for giver in &givers {
            turn.later.add(&giver.gain);
            turn.taken.insert(giver.id);
            if is_known && is_now(&givers) {
                self.give(now, index, giver, turn);
            }
        }
        turn.later = turn.later.minus(extra);
        turn.taken.insert(id);
        let wake = self.families.get(&id)?.wake();
        let reason = words::for_givers(&self.families, &givers, now, wake);
        self.tell(index, reason, turn);
        None
    }

    /// Returns whether all other programs have reported since a call began to wait, but for those that cannot move.
    fn is_known(&self, now: Duration, wait: &Waiting) -> bool {
        let mut others = self.families.iter().filter(|(id, _)| **id != wait.family);
        let has_reported =
            |family: &Family| family.members.values().all(|it| it.reported >= wait.since);
        others.all(|(_, family)| has_reported(family) || family.obstacle(now).is_some())
    }

    /// Grants a call its room. The other processes of its program come back when they are touched, and find theirs kept.
    fn grant(&mut self, now: Duration, index: usize, extra: &Amounts, turn: &mut Turn) {
        let wait = &self.waits[index];
        let (id, ticket, own) = (wait.member, wait.need.ticket, self.own_room(wait));
        if let Some(family) = self.families.get_mut(&wait.family) {
            family.set_due(|_| true);
        }
        turn.now = turn.now.minus(extra);
        for order in self.families.values_mut().filter_map(|family| family.order.as_mut()) {
            order.left = order.left.minus(extra);
        }
        let lease = self.room.lease(now, id, ticket, own);
        let wait = &mut self.waits[index];
        (wait.is_granted, wait.told) = (true, None);
        let lease_ms = lease.as_millis() as u64;
        turn.told.push((id, ToAgent::Grant { ticket, lease_ms }));
    }

    fn give(&mut self, now: Duration, index: usize, giver: &Giver, turn: &mut Turn) {
        self.orders += 1;
        let (number, wait, most) = (self.orders, &self.waits[index], self.most_served());
        let waits_itself = self.waits.iter().any(|it| it.family == giver.id);
        let asker = self.families.get(&wait.family);
        let asker = asker.map(|it| (it.name(), it.join.priority, it.served));
        let (Some((for_whom, class, served)), Some(family)) =
            (asker, self.families.get_mut(&giver.id))
        else {
            return;
        };
        let mut served_meanwhile = Duration::ZERO;
        if giver.is_busy {
            served_meanwhile = now.saturating_sub(wait.since.max(family.since));
            family.served = family.served.max(served.saturating_sub(CATCHING_UP));
        } else if !waits_itself {
            // What is idle has no claim on the time of others.
            family.served = most;
        }
        if giver.is_busy && class <= family.join.priority {
            self.moves.begin(number, now, family.switch(), giver.gain.clone());
        }
        let (drain_ms, way) = (family.drain(now).as_millis() as u64, giver.way);
        family.set_due(|_| false);
        // Who has nothing to give stops, too: it may use memory of another.
        let is_told =
            |it: &Member| !it.is_away() || (way == Way::Suspend && it.gain(way).total() > 0);
        let told: Vec<_> =
            family.active().filter(|(_, it)| is_told(it)).map(|(id, _)| id).collect();
        let give = Give { order: number, way, drain_ms, for_whom, holds: told.len() > 1 };
        for id in &told {
            family.members.entry(*id).and_modify(|member| member.asked(now));
            turn.told.push((*id, ToAgent::Give(give.clone())));
        }
        family.order = Some(Order {
            number,
            given: now,
            call: (wait.member, wait.need.ticket),
            served: served_meanwhile,
            gain: giver.gain.clone(),
            left: turn.now.clone(),
            parts: told.into_iter().map(|id| (id, Part::Told)).collect(),
            leaves: None,
            refused: None,
        });
    }

    /// Tells a program what its call waits for, if that has changed.
    fn tell(&mut self, index: usize, reason: Reason, turn: &mut Turn) {
        let wait = &mut self.waits[index];
        let new = Wait {
            ticket: wait.need.ticket,
            why: reason.why,
            command: reason.command,
            expected_s: reason.expected.map(|time| time.as_secs_f64()),
        };
        let is_new = wait.told.as_ref().is_none_or(|told| told.why != new.why);
        if is_new {
            turn.told.push((wait.member, ToAgent::Wait(new.clone())));
        }
        wait.told = Some(new);
    }
}
