//! A process that shares: what its agent says about it.

use std::time::Duration;

use lowtide_proto::helper::Target;
use lowtide_proto::share::{Report, State, Way};
use lowtide_types::Bytes;

use super::amounts::Amounts;

/// The time in which an agent answers. Nobody waits for a process whose agent does not.
const SILENCE: Duration = Duration::from_secs(2);
/// The time after which the kernel is asked whether a process is stopped.
const LATE: Duration = Duration::from_millis(90);

/// A process that shares: the number of its standing connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A process that shares.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: Target,
    pub(super) command: String,
    pub(super) report: Option<Report>,
    /// The moment of the last report.
    pub(super) reported: Duration,
    /// The moment since which it has been idle.
    pub(super) idle_since: Option<Duration>,
    /// Whether its family has its turn, and the room that its wake takes is kept.
    pub(super) is_due: bool,
    /// What a sleep left of it, by the last report in which it was not suspended.
    staying: Amounts,
    /// The moment since which a question has had no answer.
    unanswered: Option<Duration>,
    /// Whether the kernel says that it is stopped.
    pub(super) is_stopped: bool,
}

impl Member {
    /// Makes a member of a process that joins.
    pub(super) fn new(now: Duration, target: Target, command: String) -> Member {
        Member {
            target,
            command,
            report: None,
            reported: now,
            idle_since: None,
            is_due: false,
            staying: Amounts::default(),
            unanswered: None,
            is_stopped: false,
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

    /// Returns for how long it has not answered, if that is too long.
    pub(super) fn silence(&self, now: Duration) -> Option<Duration> {
        let silence = now.saturating_sub(self.unanswered?);
        (silence > SILENCE).then_some(silence)
    }

    /// Returns whether it cannot take a grant: it is stopped, or its agent does not answer.
    pub(super) fn is_deaf(&self, now: Duration) -> bool {
        self.is_stopped || self.silence(now).is_some()
    }

    /// Takes its report.
    pub(super) fn hear(&mut self, now: Duration, report: Report) {
        self.idle_since =
            report.idle_ms.map(|idle| now.saturating_sub(Duration::from_millis(idle)));
        let devices = report.devices.iter();
        if report.state != State::Suspended {
            self.staying = Amounts::of(devices.map(|it| (it.uuid.as_str(), it.staying)));
        }
        // What is on its way back has a lease.
        self.is_due &= !matches!(report.state, State::Awake | State::Draining);
        (self.report, self.reported) = (Some(report), now);
    }

    /// Returns whether it uses devices, or nobody knows.
    pub(super) fn is_active(&self) -> bool {
        self.report.as_ref().is_none_or(|report| !report.devices.is_empty())
    }

    /// Returns whether it has memory on the devices that a sleep frees.
    pub(super) fn is_there(&self) -> bool {
        self.report.as_ref().is_some_and(|report| {
            let has_some = report.devices.iter().any(|device| device.resident > Bytes::ZERO);
            has_some && matches!(report.state, State::Awake | State::Draining)
        })
    }

    /// Returns whether its memory is off the devices.
    pub(super) fn is_away(&self) -> bool {
        self.report.as_ref().is_some_and(|it| matches!(it.state, State::Asleep | State::Suspended))
    }

    /// Returns what it has on the devices.
    pub(super) fn held(&self) -> Amounts {
        let devices = self.report.iter().flat_map(|report| &report.devices);
        Amounts::of(devices.map(|it| (it.uuid.as_str(), it.resident + it.staying)))
    }

    /// Returns what comes back to the devices while it is off them.
    pub(super) fn back(&self) -> Amounts {
        let Some(report) = self.report.as_ref().filter(|_| self.is_away()) else {
            return Amounts::default();
        };
        let back = Amounts::of(report.devices.iter().map(|it| (it.uuid.as_str(), it.back)));
        match report.state {
            State::Suspended => Amounts::sum([back, self.staying.clone()]),
            _ => back,
        }
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

    /// Returns why it cannot be made to give way now, as the end of a sentence about it, and a command that removes
    /// that; `None` if it can.
    pub(super) fn obstacle(&self, now: Duration) -> Option<(String, Option<String>)> {
        let passing = |why: &str| Some((why.to_owned(), None));
        if self.is_stopped {
            let command = format!("kill -CONT {}", self.target.pid);
            return Some(("is stopped".to_owned(), Some(command)));
        }
        if let Some(silence) = self.silence(now) {
            return passing(&format!("has not answered for {} s", silence.as_secs()));
        }
        let Some(report) = &self.report else { return passing("has not told yet what it has") };
        if !report.unmovable.is_empty() {
            return passing(&format!("cannot sleep: {}", report.unmovable.join(", ")));
        }
        if report.is_exiting {
            return passing("is ending");
        }
        if report.in_capture {
            return passing("captures a graph");
        }
        if report.state == State::Waking { passing("is waking") } else { None }
    }
}
