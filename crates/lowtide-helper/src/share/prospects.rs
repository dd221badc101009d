//! What a call can hope for: never any room, or some from whom and when.

use std::collections::BTreeSet;
use std::time::Duration;

use lowtide_types::Bytes;

use super::amounts::{Amounts, signed, unsigned};
use super::arbiter::Arbiter;
use super::member::{Member, MemberId};
use super::plan::Candidate;
use super::room::DeviceFree;
use super::turns::{CATCHING_UP, Rule};
use super::waits::Waiting;
use super::words;

impl Arbiter {
    /// Returns why a call can never have its room, and whether that is certain whatever the free numbers say.
    pub(super) fn hopeless(&self, wait: &Waiting) -> Option<(String, bool)> {
        let need = Amounts::from(wait.need.devices.as_slice());
        for (uuid, bytes) in need.iter() {
            let Some(device) = self.room.devices.get(uuid) else {
                return Some((format!("the driver does not report GPU {uuid}"), true));
            };
            // It can free nothing and try again: its wake is never too large for the device that it came from.
            let is_away = self.members.get(&wait.member).is_some_and(Member::is_away);
            let reserve = if is_away { Bytes::ZERO } else { device.reserve() };
            let most = signed(device.capacity.saturating_sub(reserve));
            let (wanted, of_device) = (unsigned(bytes), unsigned(most));
            if bytes > most && self.without != Some(Rule::WholeNeeds) {
                let why =
                    format!("{wanted} needed on GPU {uuid}, which has {of_device} for programs");
                return Some((why, true));
            }
            // Memory of a program that has not reported counts as nobody's, for a moment. And one that is off the
            // device waits until the others end.
            if is_away || self.members.values().any(|member| member.report.is_none()) {
                continue;
            }
            let fixed = self.fixed(wait.member, device, Bytes::ZERO);
            if bytes > most - fixed {
                let why = format!(
                    "{wanted} needed on GPU {uuid}, where {} of {of_device} cannot be moved{}",
                    unsigned(fixed),
                    words::fixed_by(&self.members, device, wait.member)
                );
                return Some((why, false));
            }
        }
        None
    }

    /// Returns the room that a call waits for. A program took the reserve where it did not have to ask: its wake may
    /// take it again, and waits for the rest.
    pub(super) fn room_of(&self, wait: &Waiting) -> Amounts {
        let mut room = wait.extra(&self.members, self.without);
        let Some(member) = self.members.get(&wait.member).filter(|it| it.is_away()) else {
            return room;
        };
        for (uuid, device) in &self.room.devices {
            let most = signed(device.capacity.saturating_sub(device.reserve()));
            room.put(uuid, room.at(uuid).min(most - member.held().at(uuid)));
        }
        room.positive()
    }

    /// Returns the memory of a device that nobody can move, for a call of this program, which has at least `own`.
    pub(super) fn fixed(&self, id: MemberId, device: &DeviceFree, own: Bytes) -> i64 {
        let uuid = device.uuid.as_str();
        let of = |(member, it): (&MemberId, &Member)| {
            let held = it.held().at(uuid);
            if *member == id { held.max(signed(own)) } else { held }
        };
        let held: i64 = self.members.iter().map(of).sum();
        let in_use = signed(device.capacity.saturating_sub(device.free));
        let strangers = (in_use - held - self.room.leased().at(uuid)).max(0);
        let others = self.members.iter().filter(|(other, _)| **other != id);
        let fixed = others.map(|(_, member)| {
            if member.is_lasting() { member.held().at(uuid) } else { member.fixed().at(uuid) }
        });
        strangers + fixed.sum::<i64>()
    }

    /// Returns the programs that can be made to give way for a call, now or later.
    pub(super) fn candidates(
        &self,
        now: Duration,
        wait: &Waiting,
        taken: &BTreeSet<MemberId>,
    ) -> Vec<Candidate<'_>> {
        let is_free = |id: MemberId, member: &Member| {
            id != wait.member
                && !taken.contains(&id)
                && member.order.is_none()
                && !self.room.is_lent_to(id)
                && !self.waits_inside(id)
                && member.obstacle(now).is_none()
        };
        let free = self.members.iter().filter(|(id, member)| is_free(**id, member));
        let candidates = free.map(|(id, member)| {
            let from = self.residence_end(now, wait, member);
            Candidate { id: *id, member, idle: self.idle(now, *id, member), from }
        });
        candidates.collect()
    }

    /// Returns whether a program waits in a call that cannot leave the gate: then it cannot be put to sleep.
    fn waits_inside(&self, id: MemberId) -> bool {
        let inside =
            |wait: &Waiting| !wait.need.can_leave || self.without == Some(Rule::WaitingIsOutside);
        self.waits.iter().any(|wait| wait.member == id && inside(wait))
    }

    /// Returns for how long a program has been idle, or has waited itself; `None` for a busy one.
    fn idle(&self, now: Duration, id: MemberId, member: &Member) -> Option<Duration> {
        let waiting = self.waits.iter().filter(|wait| wait.member == id).map(|wait| wait.since);
        let away = member.is_away().then_some(member.since);
        let since = member.idle_since.into_iter().chain(waiting).min().or(away)?;
        Some(now.saturating_sub(since))
    }

    /// Returns the moment from which a busy program can be told to sleep for a call.
    fn residence_end(&self, now: Duration, wait: &Waiting, member: &Member) -> Duration {
        let Some(asker) = self.members.get(&wait.member) else { return now };
        if self.without == Some(Rule::Residence) || asker.join.priority > member.join.priority {
            return now;
        }
        // Whoever had less time than the one that asks catches up.
        let behind = asker.served.saturating_sub(member.served).min(CATCHING_UP);
        let over = member.since + member.residence().max(behind);
        over.max(self.moves.next(now, member.switch(), &member.held()))
    }
}
