//! A program that shares.

use std::time::Duration;

use lowtide_proto::helper::Target;
use lowtide_proto::share::{Join, Report, State, Way};
use lowtide_types::Bytes;

use super::amounts::Amounts;
use super::turns::residence;

/// The time in which an agent answers. Nobody waits for a program whose agent does not.
const SILENCE: Duration = Duration::from_secs(2);
/// The time after which the kernel is asked whether a program is stopped.
const LATE: Duration = Duration::from_millis(90);
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

/// A program that shares: the number of its standing connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A program that shares.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: Target,
    pub(super) join: Join,
    pub(super) report: Option<Report>,
    /// The moment of the last report.
    pub(super) reported: Duration,
    /// The moment at which its memory last came to the devices or left them.
    pub(super) since: Duration,
    /// The moment since which it has been idle.
    pub(super) idle_since: Option<Duration>,
    /// The moment since which a question has had no answer.
    unanswered: Option<Duration>,
    /// Whether the kernel says that it is stopped.
    pub(super) is_stopped: bool,
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

/// An order that a program carries out.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) given: Duration,
    /// The call that it makes room for.
    pub(super) call: (MemberId, u64),
    /// The time for which that call has waited while the program worked.
    pub(super) served: Duration,
    /// The memory that it frees.
    pub(super) gain: Amounts,
    /// What could be granted when the order was given, minus what was granted since. What is free beyond that may
    /// be memory of this order.
    pub(super) left: Amounts,
}

/// The reason for which nobody can make a program give way now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// The reason, as the end of a sentence about the program.
    pub(super) why: String,
    /// A command that removes it.
    pub(super) command: Option<String>,
}

impl Member {
    /// Makes a member of a program that joins.
    pub(super) fn new(now: Duration, target: Target, join: Join, served: Duration) -> Member {
        Member {
            target,
            join,
            report: None,
            reported: now,
            since: now,
            idle_since: None,
            unanswered: None,
            is_stopped: false,
            order: None,
            handover: Duration::ZERO,
            served,
            joined: now,
            tried: Duration::ZERO,
            failures: 0,
            not_before: None,
        }
    }

    /// Takes note that its agent said something.
    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Takes note that its agent is asked something.
    pub(super) fn asked(&mut self, now: Duration) {
        self.unanswered.get_or_insert(now);
    }

    /// Returns whether a look at it can be asked for: the last one was answered.
    pub(super) fn can_be_asked(&self) -> bool {
        self.unanswered.is_none()
    }

    /// Returns whether its agent takes longer to answer than an agent of a running program.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        self.unanswered.is_some_and(|since| now >= since + LATE)
    }

    /// Returns whether its memory cannot leave for a reason that does not pass.
    pub(super) fn is_lasting(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.unmovable.is_empty())
    }

    /// Returns for how long it has not answered, if that is too long.
    fn silence(&self, now: Duration) -> Option<Duration> {
        let silence = now.saturating_sub(self.unanswered?);
        (silence > SILENCE).then_some(silence)
    }

    /// Returns whether it cannot take a grant: it is stopped, or its agent does not answer.
    pub(super) fn is_deaf(&self, now: Duration) -> bool {
        self.is_stopped || self.silence(now).is_some()
    }

    /// Takes its report.
    pub(super) fn hear(&mut self, now: Duration, report: Report) {
        let is_there = |report: &Report| {
            let has_some = report.devices.iter().any(|device| device.resident > Bytes::ZERO);
            has_some && matches!(report.state, State::Awake | State::Draining)
        };
        if self.report.as_ref().is_none_or(|before| is_there(before) != is_there(&report)) {
            self.since = now;
        }
        self.idle_since =
            report.idle_ms.map(|idle| now.saturating_sub(Duration::from_millis(idle)));
        (self.report, self.reported) = (Some(report), now);
    }

    /// Returns what it has on the devices.
    pub(super) fn held(&self) -> Amounts {
        let devices = self.report.iter().flat_map(|report| &report.devices);
        Amounts::of(devices.map(|it| (it.uuid.as_str(), it.resident + it.staying)))
    }

    /// Returns what a wake brings back while it is off the devices.
    pub(super) fn back(&self) -> Amounts {
        let away = self.report.iter().filter(|report| report.state != State::Awake);
        let devices = away.flat_map(|report| &report.devices);
        Amounts::of(devices.map(|it| (it.uuid.as_str(), it.back)))
    }

    /// Returns what it frees if it gives way.
    pub(super) fn gain(&self, way: Way) -> Amounts {
        let devices = self.report.iter().flat_map(|report| &report.devices);
        Amounts::of(devices.map(|it| {
            let bytes = match way {
                Way::Sleep => it.resident,
                Way::Suspend => it.resident + it.suspendable,
            };
            (it.uuid.as_str(), bytes)
        }))
    }

    /// Returns what nobody can take from it.
    pub(super) fn fixed(&self) -> Amounts {
        self.held().minus(&self.gain(Way::Suspend))
    }

    /// Returns whether its memory is off the devices.
    pub(super) fn is_away(&self) -> bool {
        self.report.as_ref().is_some_and(|it| matches!(it.state, State::Asleep | State::Suspended))
    }

    /// Returns whether it is in a state that passes only by itself: it ends, or captures a graph.
    pub(super) fn is_urgent(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.is_exiting || report.in_capture)
    }

    /// Returns the time that its last sleep and its last wake took together.
    pub(super) fn switch(&self) -> Duration {
        let took = self.report.as_ref().map_or(0, |it| it.sleep_ms.saturating_add(it.wake_ms));
        Duration::from_millis(took)
    }

    /// Returns the time that its last wake took.
    pub(super) fn wake(&self) -> Duration {
        Duration::from_millis(self.report.as_ref().map_or(0, |report| report.wake_ms))
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

    /// Returns why it cannot be made to give way now; `None` if it can.
    pub(super) fn obstacle(&self, now: Duration) -> Option<Obstacle> {
        let passing = |why: String| Obstacle { why, command: None };
        let pid = self.target.pid;
        if self.is_stopped {
            let command = Some(format!("kill -CONT {pid}"));
            return Some(Obstacle { command, ..passing("is stopped".to_owned()) });
        }
        if let Some(silence) = self.silence(now) {
            return Some(passing(format!("has not answered for {} s", silence.as_secs())));
        }
        let Some(report) = &self.report else {
            return Some(passing("has not told yet what it has".to_owned()));
        };
        if !report.unmovable.is_empty() {
            return Some(passing(format!("cannot sleep: {}", report.unmovable.join(", "))));
        }
        if report.is_exiting {
            return Some(passing("is ending".to_owned()));
        }
        if report.in_capture {
            return Some(passing("captures a graph".to_owned()));
        }
        if let Some((at, reason)) = self.not_before.as_ref().filter(|it| it.0 > now) {
            let seconds = at.saturating_sub(now).as_secs_f64().ceil();
            let why = format!("did not give way: {reason}; it is asked again in {seconds} s");
            return Some(passing(why));
        }
        if report.state == State::Waking {
            return Some(passing("is waking".to_owned()));
        }
        if self.order.as_ref().is_some_and(|order| now > order.given + DRAIN + OVERDUE) {
            return Some(passing("has not done giving way".to_owned()));
        }
        None
    }

    /// Returns its name for people.
    pub(super) fn name(&self) -> String {
        format!("process {} ({})", self.target.pid, self.join.command)
    }
}
