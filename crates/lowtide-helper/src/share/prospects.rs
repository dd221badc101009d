//! What a call can hope for: never any room, or some from whom and when.

use std::collections::BTreeSet;
use std::time::Duration;

use lowtide_types::Bytes;

use super::amounts::{Amounts, signed, unsigned};
use super::arbiter::Arbiter;
use super::family::{Family, FamilyId};
use super::member::{Member, MemberId};
use super::plan::Candidate;
use super::room::DeviceFree;
use super::turns::{CATCHING_UP, Rule};
use super::waits::Waiting;
use super::words;

impl Arbiter {
    /// Returns why a call can never have its room, and whether that is certain whatever the free numbers say.
    pub(super) fn hopeless(&self, wait: &Waiting) -> Option<(String, bool)> {
        let family = self.families.get(&wait.family)?;
        let others = || family.active().filter(|(id, _)| *id != wait.member);
        let whole = |member: &Member| Amounts::sum([member.held(), member.back()]);
        let need = Amounts::sum(
            others().map(|(_, it)| whole(it)).chain([Amounts::from(wait.need.devices.as_slice())]),
        );
        for (uuid, bytes) in need.iter() {
            let Some(device) = self.room.devices.get(uuid) else {
                return Some((format!("the driver does not report GPU {uuid}"), true));
            };
            // It can free nothing and try again: its wake is never too large for the device that it came from.
            let is_away = family.is_away();
            let reserve = if is_away { Bytes::ZERO } else { device.reserve() };
            let most = signed(device.capacity.saturating_sub(reserve));
            let (wanted, of_device) = (unsigned(bytes), unsigned(most));
            if bytes > most && self.without != Some(Rule::WholeNeeds) {
                let has = |(_, it): (_, &Member)| {
                    let bytes = whole(it).at(uuid);
                    (bytes > 0)
                        .then(|| format!("process {} has {}", it.target.pid, unsigned(bytes)))
                };
                let has: Vec<String> = others().filter_map(has).collect();
                let family = match has.as_slice() {
                    [] => String::new(),
                    has => format!(
                        ": its family takes turns as one program, and {}; `lowtide run --apart` makes each process its \
                         own",
                        has.join(", ")
                    ),
                };
                let why = format!(
                    "{wanted} needed on GPU {uuid}, which has {of_device} for programs{family}"
                );
                // What the others have may have become less.
                let is_certain = others().all(|(_, member)| member.reported >= wait.since);
                return Some((why, is_certain));
            }
            // Memory of a program that has not reported counts as nobody's, for a moment. And one that is off the
            // device waits until the others end.
            if is_away || !self.families.values().all(Family::has_reported) {
                continue;
            }
            let fixed = self.fixed(wait.family, device, Bytes::ZERO);
            if bytes > most - fixed {
                let why = format!(
                    "{wanted} needed on GPU {uuid}, where {} of {of_device} cannot be moved{}",
                    unsigned(fixed),
                    words::fixed_by(&self.families, device, wait.family)
                );
                return Some((why, false));
            }
        }
        None
    }

    /// Returns the room that the process of a call takes: its whole need without what it has.
    pub(super) fn own_room(&self, wait: &Waiting) -> Amounts {
        let mut extra = Amounts::from(wait.need.devices.as_slice());
        if let Some(member) = self.member(wait.member) {
            extra = extra.minus(&member.held());
            if self.without == Some(Rule::WholeNeeds) {
                extra = extra.minus(&member.back());
            }
        }
        extra.positive()
    }

    /// Returns the room that a call waits for: its own, and what the processes of its family come back with for which
    /// nothing is kept. A program took the reserve where it did not have to ask: its wake may take it again, and waits for
    /// the rest.
    pub(super) fn room_of(&self, wait: &Waiting) -> Amounts {
        let mut room = self.own_room(wait);
        let Some(family) = self.families.get(&wait.family) else { return room };
        let is_open = |(id, it): &(MemberId, &Member)| {
            *id != wait.member && !it.is_due && !self.room.is_lent_to(*id)
        };
        for (_, member) in family.active().filter(is_open) {
            room.add(&member.back());
        }
        if family.is_away() {
            let held = family.held();
            for (uuid, device) in &self.room.devices {
                let most = signed(device.capacity.saturating_sub(device.reserve()));
                room.put(uuid, room.at(uuid).min(most - held.at(uuid)));
            }
        }
        room.positive()
    }

    /// Returns the room that is kept for a process whose family has its turn.
    pub(super) fn promise(&self, id: MemberId) -> Amounts {
        let due = self.member(id).filter(|it| it.is_due && !self.room.is_lent_to(id));
        due.map(Member::back).unwrap_or_default()
    }

    /// Returns the room that is kept for all processes.
    pub(super) fn promised(&self) -> Amounts {
        Amounts::sum(self.members().map(|(id, _)| self.promise(id)))
    }

    /// Returns the memory of a device that nobody can move, for a call of this program, which has at least `own`.
    pub(super) fn fixed(&self, id: FamilyId, device: &DeviceFree, own: Bytes) -> i64 {
        let uuid = device.uuid.as_str();
        let of = |(family, it): (&FamilyId, &Family)| {
            let held = it.held().at(uuid);
            if *family == id { held.max(signed(own)) } else { held }
        };
        let held: i64 = self.families.iter().map(of).sum();
        let in_use = signed(device.capacity.saturating_sub(device.free));
        let strangers = (in_use - held - self.room.leased().at(uuid)).max(0);
        let others = self.families.iter().filter(|(other, _)| **other != id);
        let fixed = others.map(|(_, family)| {
            if family.is_lasting() { family.held().at(uuid) } else { family.fixed().at(uuid) }
        });
        strangers + fixed.sum::<i64>()
    }

    /// Returns the programs that can be made to give way for a call, now or later.
    pub(super) fn candidates(
        &self,
        now: Duration,
        wait: &Waiting,
        taken: &BTreeSet<FamilyId>,
    ) -> Vec<Candidate<'_>> {
        let is_free = |id: FamilyId, family: &Family| {
            id != wait.family
                && !taken.contains(&id)
                && family.order.is_none()
                && !family.members.keys().any(|member| self.room.is_lent_to(*member))
                && !self.waits_inside(id)
                && family.obstacle(now).is_none()
        };
        let free = self.families.iter().filter(|(id, family)| is_free(**id, family));
        let candidates = free.map(|(id, family)| {
            let from = self.residence_end(now, wait, family);
            Candidate { id: *id, family, idle: self.idle(now, family), from }
        });
        candidates.collect()
    }

    /// Returns whether a program waits in a call that cannot leave the gate: then it cannot be put to sleep.
    fn waits_inside(&self, id: FamilyId) -> bool {
        let inside =
            |wait: &Waiting| !wait.need.can_leave || self.without == Some(Rule::WaitingIsOutside);
        self.waits.iter().any(|wait| wait.family == id && inside(wait))
    }

    /// Returns for how long all processes of a program have been idle, or have waited themselves; `None` for a busy one.
    fn idle(&self, now: Duration, family: &Family) -> Option<Duration> {
        let mut newest = None;
        for (id, member) in family.active() {
            let waiting = self.waits.iter().filter(|wait| wait.member == id).map(|wait| wait.since);
            let since = member.idle_since.into_iter().chain(waiting).min();
            newest = newest.max(Some(since.or(member.is_away().then_some(family.since))?));
        }
        Some(now.saturating_sub(newest?))
    }

    /// Returns the moment from which a busy program can be told to sleep for a call.
    fn residence_end(&self, now: Duration, wait: &Waiting, family: &Family) -> Duration {
        let Some(asker) = self.families.get(&wait.family) else { return now };
        if self.without == Some(Rule::Residence) || asker.join.priority > family.join.priority {
            return now;
        }
        // Whoever had less time than the one that asks catches up.
        let behind = asker.served.saturating_sub(family.served).min(CATCHING_UP);
        let over = family.since + family.residence().max(behind);
        over.max(self.moves.next(now, family.switch(), &family.held()))
    }
}
