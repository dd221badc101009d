//! A simulated program with its agent: what it has, what it does, how it obeys.

use std::time::Duration;

use lowtide_helper::share::RESERVE;
use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{Give, Holding, Join, Need, Priority, Report, State};
use lowtide_types::Bytes;

pub(super) const MIB: i64 = 1 << 20;
pub(super) const GIB: i64 = 1 << 30;
/// A program that has nothing to do for so long is idle.
const IDLE: Duration = Duration::from_millis(20);

/// A call that waits.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) ticket: u64,
    pub(super) since: Duration,
    /// What it wants more, on each of its devices.
    pub(super) more: i64,
    pub(super) can_leave: bool,
    /// The moment until which it may take its memory.
    pub(super) granted: Option<Duration>,
    /// Why it waits, as it was told last.
    pub(super) why: String,
    /// The time for which it was told that somebody cannot move, and since when it is now.
    pub(super) excused: Duration,
    pub(super) excused_since: Option<Duration>,
}

/// A program.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a simulated program")]
pub(super) struct Program {
    pub(super) pid: u32,
    pub(super) priority: Priority,
    pub(super) devices: Vec<usize>,
    pub(super) state: State,
    /// What it began with on each device.
    pub(super) base: i64,
    /// Its memory on each device: what comes back, what it caches, what a sleep leaves.
    pub(super) live: i64,
    pub(super) cached: i64,
    pub(super) staying: i64,
    pub(super) ms_per_gib: u64,
    /// Whether it always works; others work on requests.
    pub(super) is_tireless: bool,
    /// Whether its memory cannot leave.
    pub(super) is_fixed: bool,
    /// How often its work does not end while it is drained, in a thousand.
    pub(super) stubborn: u64,
    pub(super) requests: u32,
    pub(super) is_busy: bool,
    pub(super) changed: Duration,
    pub(super) call: Option<Call>,
    pub(super) order: Option<u64>,
    /// The first process of its run.
    pub(super) family: Option<Target>,
    /// The order for which it holds, and since when it is held up by that.
    pub(super) held: Option<(Give, Duration)>,
    /// Whether it went on by itself while others of its family may have left.
    pub(super) is_astray: bool,
    /// Whether its family has its turn, and it has not come back yet.
    pub(super) is_due: bool,
    /// Whether the sleep under way and the wake after it hold up work for its own class or a lower one.
    pub(super) is_forced: bool,
    /// Whether its work has ended for the sleep under way.
    pub(super) is_copying: bool,
    /// The time for which it has worked.
    pub(super) worked: Duration,
    pub(super) stopped_until: Duration,
    pub(super) capture_until: Duration,
    pub(super) is_alive: bool,
    pub(super) born: Duration,
    pub(super) tried: Duration,
    pub(super) slept: Duration,
    pub(super) woken: Duration,
    /// The moments at which its last messages arrive: they stay in order.
    pub(super) up: Duration,
    pub(super) down: Duration,
}

impl Program {
    pub(super) fn is_resident(&self) -> bool {
        !matches!(self.state, State::Asleep | State::Suspended)
    }

    /// Returns whether it gets on with its work.
    pub(super) fn works(&self) -> bool {
        let has_memory = matches!(self.state, State::Awake | State::Draining);
        let goes_on = !self.is_copying && self.held.is_none() && self.call.is_none();
        self.is_alive && has_memory && goes_on
    }

    /// Returns whether its call may take its memory.
    pub(super) fn is_lent(&self, now: Duration) -> bool {
        self.call.as_ref().and_then(|call| call.granted).is_some_and(|until| until > now)
    }

    /// Returns what it has on each of its devices.
    pub(super) fn has(&self) -> i64 {
        match self.state {
            State::Suspended => 0,
            State::Asleep => self.staying,
            _ => self.staying + self.live + self.cached,
        }
    }

    /// Returns what it will have when its call has its memory.
    pub(super) fn whole(&self, call: &Call) -> i64 {
        self.back() + call.more
    }

    /// Returns what it will have once it is back.
    pub(super) fn back(&self) -> i64 {
        self.staying + self.live + if self.is_resident() { self.cached } else { 0 }
    }

    /// Returns whether it and another one are processes of one run.
    pub(super) fn is_kin(&self, other: &Program) -> bool {
        self.family.is_some() && self.family == other.family
    }

    /// Returns what its call needs beside what it has.
    pub(super) fn extra(&self) -> i64 {
        self.call.as_ref().map_or(0, |call| self.whole(call) - self.has())
    }

    pub(super) fn copying(&self) -> Duration {
        let ms = bytes(self.live).0 * self.ms_per_gib * self.devices.len() as u64 / bytes(GIB).0;
        Duration::from_millis(ms.max(1))
    }

    pub(super) fn join(&self) -> Join {
        let command = format!("program-{}", self.pid);
        Join { command, priority: self.priority, wait_ms: 600_000, family: self.family }
    }

    pub(super) fn report(&self, now: Duration) -> Report {
        let quiet = now.saturating_sub(self.changed);
        let is_idle = !self.is_busy && self.call.is_none() && quiet >= IDLE;
        let holding = |device: &usize| Holding {
            uuid: uuid(*device),
            resident: bytes(if self.is_resident() { self.live + self.cached } else { 0 }),
            staying: bytes(if self.state == State::Suspended { 0 } else { self.staying }),
            suspendable: bytes(if self.state == State::Suspended { 0 } else { self.staying }),
            back: bytes(self.live),
        };
        Report {
            state: self.state,
            devices: self.devices.iter().map(holding).collect(),
            idle_ms: is_idle.then_some(quiet.as_millis() as u64),
            in_capture: self.capture_until > now,
            is_exiting: false,
            unmovable: if self.is_fixed { vec!["managed memory".to_owned()] } else { Vec::new() },
            sleep_ms: self.slept.as_millis() as u64,
            wake_ms: self.woken.as_millis() as u64,
        }
    }

    pub(super) fn need(&self) -> Option<Need> {
        let call = self.call.as_ref()?;
        let bytes = bytes(self.whole(call));
        let device = |device: &usize| DeviceBytes { uuid: uuid(*device), bytes };
        Some(Need {
            ticket: call.ticket,
            call: if call.more > 0 { "cuMemAlloc".to_owned() } else { "wake".to_owned() },
            devices: self.devices.iter().map(device).collect(),
            can_leave: call.can_leave,
        })
    }
}

pub(super) fn uuid(device: usize) -> String {
    format!("GPU-{device}")
}

pub(super) fn bytes(signed: i64) -> Bytes {
    Bytes(u64::try_from(signed).expect("not negative"))
}

/// Returns the most that a program can ever have on a device.
pub(super) fn most(capacity: i64) -> i64 {
    capacity - RESERVE.0.cast_signed()
}
