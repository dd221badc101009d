//! A program that shares: the processes of one `lowtide run`, which take turns together, or one that is apart.

use std::collections::BTreeMap;
use std::time::Duration;

use lowtide_proto::helper::Target;
use lowtide_proto::share::{Join, Report, Way};

use super::amounts::Amounts;
use super::member::{Member, MemberId};
use super::order::Order;
use super::turns::residence;

/// The time by which a program may take longer to give way than its drain.
const OVERDUE: Duration = Duration::from_secs(60);

/// The time for which the gate may stay closed while submitted work runs.
pub(super) const DRAIN: Duration = Duration::from_secs(10);
/// The pause after a first failed drain; it doubles with each.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MOST: Duration = Duration::from_secs(60);
/// One part in so many of a program's time may go into drains that fail: 5%, and a whole first one.
const FAILING: u32 = 20;
/// The most that counts of what a move takes beside the copies: messages, grants, a framework's cache.
const AROUND: Duration = Duration::from_secs(1);

/// A family: the number of the connection that was its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FamilyId(pub(super) u64);

/// The programs that share.
pub(super) type Families = BTreeMap<FamilyId, Family>;

/// A program that shares.
#[derive(Debug)]
pub(super) struct Family {
    /// What its first process said.
    pub(super) join: Join,
    pub(super) members: BTreeMap<MemberId, Member>,
    /// The moment at which its memory last came to the devices or left them.
    pub(super) since: Duration,
    /// The order that it carries out.
    pub(super) order: Option<Order>,
    /// The time from the end of the work that gave way for it until it had its memory, when that was last so.
    handover: Duration,
    /// The time for which others have waited while it worked.
    pub(super) served: Duration,
    joined: Duration,
    /// The time that failed drains have taken.
    tried: Duration,
    failures: u32,
    /// The moment from which it may be made to drain again, and the reason of the last failure.
    not_before: Option<(Duration, String)>,
}

/// The reason for which nobody can make a program give way now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// The reason, as the end of a sentence about the program.
    pub(super) why: String,
    /// A command that removes it.
    pub(super) command: Option<String>,
}

impl Family {
    /// Makes a family whose first process is to come.
    pub(super) fn new(now: Duration, join: Join, served: Duration) -> Family {
        Family {
            join,
            members: BTreeMap::new(),
            since: now,
            order: None,
            handover: Duration::ZERO,
            served,
            joined: now,
            tried: Duration::ZERO,
            failures: 0,
            not_before: None,
        }
    }

    /// Takes a report of one of its processes.
    pub(super) fn hear(&mut self, now: Duration, id: MemberId, report: Report) {
        let was_there = self.members.values().any(Member::is_there);
        let is_first = self.reports().next().is_none();
        let Some(member) = self.members.get_mut(&id) else { return };
        member.hear(now, report);
        if is_first || was_there != self.members.values().any(Member::is_there) {
            self.since = now;
        }
    }

    /// Returns its processes that use devices.
    pub(super) fn active(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.members.iter().filter(|(_, member)| member.is_active()).map(|(id, it)| (*id, it))
    }

    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.members.values().filter_map(|member| member.report.as_ref())
    }

    /// Returns whether all its processes have reported.
    pub(super) fn has_reported(&self) -> bool {
        self.members.values().all(|member| member.report.is_some())
    }

    /// Returns whether its memory cannot leave for a reason that does not pass.
    pub(super) fn is_lasting(&self) -> bool {
        self.reports().any(|report| !report.unmovable.is_empty())
    }

    /// Returns what it has on the devices.
    pub(super) fn held(&self) -> Amounts {
        Amounts::sum(self.members.values().map(Member::held))
    }

    /// Returns what it frees if it gives way.
    pub(super) fn gain(&self, way: Way) -> Amounts {
        Amounts::sum(self.members.values().map(|member| member.gain(way)))
    }

    /// Returns what nobody can take from it.
    pub(super) fn fixed(&self) -> Amounts {
        self.held().minus(&self.gain(Way::Suspend))
    }

    /// Returns whether its memory is off the devices.
    pub(super) fn is_away(&self) -> bool {
        let is_there = self.active().any(|(_, it)| it.is_there() || it.report.is_none());
        !is_there && self.active().any(|(_, member)| member.is_away())
    }

    /// Returns whether it is in a state that passes only by itself: it ends, or captures a graph.
    pub(super) fn is_urgent(&self) -> bool {
        self.reports().any(|report| report.is_exiting || report.in_capture)
    }

    /// Returns the time that its last sleep and its last wake took together. Its processes move at the same time.
    pub(super) fn switch(&self) -> Duration {
        let took = self.reports().map(|it| it.sleep_ms.saturating_add(it.wake_ms));
        Duration::from_millis(took.max().unwrap_or(0))
    }

    /// Returns the time that its last wake took.
    pub(super) fn wake(&self) -> Duration {
        Duration::from_millis(self.reports().map(|report| report.wake_ms).max().unwrap_or(0))
    }

    /// Takes note that it has its memory, for which work ended that long ago.
    pub(super) fn came(&mut self, time: Duration, copies: Duration) {
        self.handover = time.min(copies + AROUND);
    }

    /// Returns the time for which it keeps its memory while it is busy.
    pub(super) fn residence(&self) -> Duration {
        residence(self.switch().max(self.handover))
    }

    /// Returns the longest time for which a drain may hold it up now.
    pub(super) fn drain(&self, now: Duration) -> Duration {
        let most = DRAIN + now.saturating_sub(self.joined) / FAILING;
        most.saturating_sub(self.tried).min(DRAIN)
    }

    /// Takes note that it gave way.
    pub(super) fn gave(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }

    /// Takes note that it did not give way. The next attempt waits twice as long.
    pub(super) fn failed(&mut self, now: Duration, reason: String, tried: Duration) {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MOST);
        self.failures += 1;
        self.tried += tried;
        self.not_before = Some((now + pause, reason));
    }

    /// Has the room kept that those of these processes come back with which are off the devices, and no other room.
    pub(super) fn set_due(&mut self, is_due: impl Fn(MemberId) -> bool) {
        for (id, member) in &mut self.members {
            member.is_due = is_due(*id) && member.is_away();
        }
    }

    /// Returns why it cannot be made to give way now; `None` if it can.
    pub(super) fn obstacle(&self, now: Duration) -> Option<Obstacle> {
        let of = |(_, member): (_, &Member)| Some((member.target, member.obstacle(now)?));
        if let Some((Target { pid, .. }, (why, command))) = self.active().find_map(of) {
            let is_one = self.members.len() == 1;
            let why = if is_one { why } else { format!("its process {pid} {why}") };
            return Some(Obstacle { why, command });
        }
        let passing = |why: String| Some(Obstacle { why, command: None });
        if let Some((at, reason)) = self.not_before.as_ref().filter(|it| it.0 > now) {
            let seconds = at.saturating_sub(now).as_secs_f64().ceil();
            let why = format!("did not give way: {reason}; it is asked again in {seconds} s");
            return passing(why);
        }
        if self.order.as_ref().is_some_and(|order| now > order.given + DRAIN + OVERDUE) {
            return passing("has not done giving way".to_owned());
        }
        None
    }

    /// Returns its process of the lowest connection that uses devices, for people.
    fn first(&self) -> Option<&Member> {
        self.active().map(|(_, it)| it).next().or_else(|| self.members.values().next())
    }

    /// Returns the process that is named for it.
    pub(super) fn pid(&self) -> u32 {
        self.first().map_or(0, |member| member.target.pid)
    }

    /// Returns its name for people.
    pub(super) fn name(&self) -> String {
        let (pid, more) = (self.pid(), self.active().count().saturating_sub(1));
        let command = self.first().map_or(self.join.command.as_str(), |it| it.command.as_str());
        match more {
            0 => format!("process {pid} ({command})"),
            _ => format!("process {pid} ({command}) and {more} more of its family"),
        }
    }
}
