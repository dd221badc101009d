//! The calls of this process that wait for room, and what is to be said to the arbiter.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem};

use lowtide_device::nvml::Nvml;
use lowtide_proto::descriptors::apart;
use lowtide_proto::helper::DeviceBytes;
use lowtide_proto::share::{self, Give, ToArbiter};
use lowtide_proto::{Answer, Ask, Woken};
use lowtide_types::Bytes;
use rustix::event::{EventfdFlags, eventfd};

/// The time in which the arbiter answers a question; it may have to be started.
const ANSWER: Duration = Duration::from_secs(5);
/// The time by which others of a family may take longer to end their work than this process had.
const OTHERS: Duration = Duration::from_secs(2);
/// The calls of a process of which the arbiter is told at a time, the oldest first.
const TOLD_MOST: usize = 64;

/// The room that this process shares with others.
pub(crate) struct Room {
    /// The time after which a call stops waiting.
    pub(crate) limit: Duration,
    pub(super) nvml: Option<Arc<Nvml>>,
    table: Mutex<Table>,
    /// Notified when a wait may go on.
    changed: Condvar,
    /// Written when there is something to say.
    bell: OwnedFd,
    /// The orders to give way that are not done.
    pub(super) orders: AtomicU32,
    pub(super) is_waking: AtomicBool,
    /// What a sleep left on each device, by UUID, when it could last be asked.
    staying: Mutex<BTreeMap<String, Bytes>>,
    /// Obstacles that were seen from outside, and when.
    pub(super) seen: Mutex<Option<(Instant, Vec<String>)>>,
    /// The times that the last sleep and the last wake took.
    pub(super) sleep_ms: AtomicU64,
    pub(super) wake_ms: AtomicU64,
}

/// Whether somebody decides who has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arbiter {
    /// Nobody knows yet: it is being connected to, or started.
    Sought,
    There,
    Absent,
}

pub(super) struct Table {
    pub(super) arbiter: Arbiter,
    /// The number of the connection to it.
    connection: u64,
    /// By ticket.
    pub(super) waits: BTreeMap<u64, Wait>,
    pub(super) last: u64,
    /// What is said next, after a report.
    out: Vec<ToArbiter>,
    /// What the process has on devices of which it is to be said what others have that cannot be moved, and the answers.
    asked: Vec<DeviceBytes>,
    fixed: BTreeMap<String, Bytes>,
    must_report: bool,
    /// The order of which it was said last whether this process goes on with it, and that.
    told: Option<(u64, bool)>,
    pub(super) last_notice: Option<Instant>,
}

/// A call that waits, or has a grant that it has not used.
pub(super) struct Wait {
    pub(super) call: String,
    /// `None` where the process comes back.
    pub(super) want: Option<Wanted>,
    /// How it comes back.
    pub(super) back: Option<Ask>,
    pub(super) can_leave: bool,
    pub(super) state: State,
    pub(super) unsaid: Unsaid,
    /// Whether the arbiter knows of it.
    is_known: bool,
    /// The arbiter's words about it.
    pub(super) said: Option<share::Wait>,
    /// The threads that wait with it.
    pub(super) threads: u32,
}

/// What a call wants on a device.
pub(super) struct Wanted {
    pub(super) uuid: String,
    pub(super) bytes: Bytes,
    /// Whether nobody knows how much it takes.
    pub(super) is_guess: bool,
}

/// What the arbiter is to be told of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsaid {
    Nothing,
    Need,
    /// A grant has failed that the arbiter still counts; and the need.
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// There is room up to a moment.
    Granted(Instant),
    Refused(String),
}

impl Table {
    /// Has all needs said again that wait.
    fn ask_again(&mut self) {
        for wait in self.waits.values_mut().filter(|wait| wait.state == State::Waiting) {
            if wait.unsaid == Unsaid::Nothing {
                wait.unsaid = Unsaid::Need;
            }
        }
    }
}

impl Wait {
    pub(super) fn new(
        call: String,
        want: Option<Wanted>,
        back: Option<Ask>,
        can_leave: bool,
    ) -> Wait {
        Wait {
            call,
            want,
            back,
            can_leave,
            state: State::Waiting,
            unsaid: Unsaid::Need,
            is_known: false,
            said: None,
            threads: 0,
        }
    }
}

/// What is to be said to the arbiter now.
pub(crate) struct Outgoing {
    pub(crate) must_report: bool,
    /// The tickets of needs, and whether a grant has failed.
    pub(crate) needs: Vec<(u64, bool)>,
    pub(crate) lines: Vec<ToArbiter>,
}

impl Room {
    /// Makes the room of this process. Loads NVML, which nobody may load later: a thread that waits may have the
    /// loader's lock.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(limit: Duration) -> io::Result<Room> {
        let table = Table {
            arbiter: Arbiter::Sought,
            connection: 0,
            waits: BTreeMap::new(),
            last: 0,
            out: Vec::new(),
            asked: Vec::new(),
            fixed: BTreeMap::new(),
            must_report: false,
            told: None,
            last_notice: None,
        };
        Ok(Room {
            limit,
            nvml: Nvml::kept().ok(),
            table: Mutex::new(table),
            changed: Condvar::new(),
            bell: apart(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?,
            orders: AtomicU32::new(0),
            is_waking: AtomicBool::new(false),
            staying: Mutex::default(),
            seen: Mutex::default(),
            sleep_ms: AtomicU64::new(0),
            wake_ms: AtomicU64::new(0),
        })
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn staying(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.staying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something may have changed, at most for a time.
    pub(super) fn wait<'table>(
        &self,
        table: MutexGuard<'table, Table>,
        most: Duration,
    ) -> MutexGuard<'table, Table> {
        let waited = self.changed.wait_timeout(table, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the wait of a thread. The last one of a ticket tells the arbiter.
    pub(super) fn end(&self, ticket: u64, has_taken: bool) {
        let mut table = self.table();
        let Some(wait) = table.waits.get_mut(&ticket) else { return };
        wait.threads -= 1;
        if wait.threads > 0 && !has_taken {
            return;
        }
        let Some(wait) = table.waits.remove(&ticket) else { return };
        match wait.state {
            State::Granted(_) if has_taken && wait.is_known => {
                table.out.push(ToArbiter::Used { ticket });
            }
            State::Waiting | State::Granted(_) if wait.is_known => {
                table.out.push(ToArbiter::Drop { ticket });
            }
            _ => {}
        }
        drop(table);
        self.ring();
    }

    /// Returns whether somebody decides who has room.
    pub(crate) fn has_arbiter(&self) -> bool {
        self.table().arbiter != Arbiter::Absent
    }

    /// Has whoever speaks to the arbiter look for what is to be said.
    pub(super) fn ring(&self) {
        // A full counter rings, too.
        let _rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Returns the bell, which can be read when there is something to say.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Says that the process has changed.
    pub(crate) fn report(&self) {
        self.table().must_report = true;
        self.ring();
    }

    /// Says something to the arbiter of a connection, after a report; nothing if that connection has ended. Calls that
    /// wait may need less after the process gave way, so they say it again.
    pub(crate) fn say(&self, connection: u64, line: ToArbiter) {
        let mut table = self.table();
        if table.connection == connection {
            if matches!(line, ToArbiter::Gave { .. }) {
                table.ask_again();
            }
            table.out.push(line);
            drop(table);
            self.ring();
        }
    }

    /// Begins a connection, and returns its number. Whoever waited asks anew; a grant of an earlier arbiter is used.
    pub(crate) fn connected(&self) -> u64 {
        let mut table = self.table();
        table.arbiter = Arbiter::There;
        table.connection += 1;
        table.out.clear();
        table.must_report = true;
        table.ask_again();
        for wait in table.waits.values_mut() {
            wait.is_known = false;
            if wait.unsaid == Unsaid::Failure {
                wait.unsaid = Unsaid::Need;
            }
        }
        let number = table.connection;
        drop(table);
        self.ring();
        number
    }

    /// Notes that the connection has ended, or that none could be made.
    pub(crate) fn disconnected(&self, now: Arbiter) {
        let mut table = self.table();
        table.connection += 1;
        table.arbiter = now;
        drop(table);
        self.changed.notify_all();
    }

    /// Takes what is to be said now.
    pub(crate) fn take_outgoing(&self) -> Outgoing {
        let mut silent = [0; 8];
        let _read = rustix::io::read(&self.bell, &mut silent);
        let mut table = self.table();
        let mut needs = Vec::new();
        for (ticket, wait) in table.waits.iter_mut().take(TOLD_MOST) {
            let unsaid = mem::replace(&mut wait.unsaid, Unsaid::Nothing);
            if unsaid != Unsaid::Nothing {
                needs.push((*ticket, unsaid == Unsaid::Failure));
                wait.is_known = true;
            }
        }
        let (must_report, mut lines) =
            (mem::take(&mut table.must_report), mem::take(&mut table.out));
        lines.extend(mem::take(&mut table.asked).into_iter().map(ToArbiter::Fixed));
        Outgoing { must_report, needs, lines }
    }

    /// Notes what the arbiter has decided about a wait.
    fn decide(&self, ticket: u64, state: State) {
        if let Some(wait) = self.table().waits.get_mut(&ticket) {
            wait.state = state;
            wait.unsaid = Unsaid::Nothing;
        }
        self.changed.notify_all();
    }

    /// Notes that there is room for a call, for a time.
    pub(crate) fn grant(&self, ticket: u64, lease: Duration) {
        self.decide(ticket, State::Granted(Instant::now() + lease));
    }

    /// Notes that there will be no room for a call.
    pub(crate) fn refuse(&self, ticket: u64, why: String) {
        self.decide(ticket, State::Refused(why));
    }

    /// Asks what of a device others have that cannot be moved; `None` where nobody says so in time.
    pub(super) fn fixed(&self, uuid: &str, own: Bytes) -> Option<Bytes> {
        let began = Instant::now();
        let mut table = self.table();
        table.asked.retain(|device| device.uuid != uuid);
        table.asked.push(DeviceBytes { uuid: uuid.to_owned(), bytes: own });
        self.ring();
        loop {
            let passed = began.elapsed();
            let found = table.fixed.get(uuid).copied();
            if found.is_some() || table.arbiter == Arbiter::Absent || passed >= ANSWER {
                return found;
            }
            table = self.wait(table, ANSWER.saturating_sub(passed));
        }
    }

    /// Notes what of a device others have that cannot be moved.
    pub(crate) fn note_fixed(&self, device: DeviceBytes) {
        self.table().fixed.insert(device.uuid, device.bytes);
        self.changed.notify_all();
    }

    /// Says that the work of this process has ended, and waits until that of its family has.
    ///
    /// # Errors
    /// The reason for which the process goes on with its work.
    pub(crate) fn hold(&self, give: &Give, connection: u64) -> Result<(), String> {
        // Another arbiter may have had an order of this number.
        self.table().told = None;
        self.say(connection, ToArbiter::Held { order: give.order });
        let (began, limit) = (Instant::now(), Duration::from_millis(give.drain_ms) + OTHERS);
        let mut table = self.table();
        loop {
            let passed = began.elapsed();
            match table.told {
                Some((order, true)) if order == give.order => return Ok(()),
                Some((order, false)) if order == give.order => {
                    return Err("another process of its family goes on".to_owned());
                }
                _ if table.connection != connection || passed >= limit => {
                    return Err("nobody said whether its family gives way".to_owned());
                }
                _ => table = self.wait(table, limit.saturating_sub(passed)),
            }
        }
    }

    /// Notes whether a process that holds goes on with an order.
    pub(crate) fn tell_holder(&self, order: u64, leaves: bool) {
        self.table().told = Some((order, leaves));
        self.changed.notify_all();
    }

    /// Notes what a call waits for.
    pub(crate) fn note(&self, said: share::Wait) {
        if let Some(wait) = self.table().waits.get_mut(&said.ticket) {
            wait.said = Some(said);
        }
        self.changed.notify_all();
    }

    /// Returns whether a call of this process has a grant. A need is whole, so it covers a wake.
    pub(crate) fn has_grant(&self) -> bool {
        let now = Instant::now();
        let table = self.table();
        table.waits.values().any(|wait| matches!(wait.state, State::Granted(until) if until > now))
    }

    /// Notes that an order to give way has come, or is done.
    pub(crate) fn begin_order(&self) {
        self.orders.fetch_add(1, SeqCst);
    }

    pub(crate) fn end_order(&self) {
        self.orders.fetch_sub(1, SeqCst);
    }

    /// Notes that the process comes back.
    pub(crate) fn begin_wake(&self) {
        self.is_waking.store(true, SeqCst);
    }

    /// Notes what has come of a move of the process's memory.
    pub(crate) fn end_move(&self, answer: &Answer) {
        self.is_waking.store(false, SeqCst);
        match answer {
            Answer::Woken(Woken { took_s, .. }) if *took_s > 0.0 => {
                self.wake_ms.store(Duration::from_secs_f64(*took_s).as_millis() as u64, SeqCst);
            }
            Answer::Slept { receipts } => {
                let took_s = receipts.iter().map(|receipt| receipt.took_s).sum();
                self.gave_in(Duration::from_secs_f64(took_s));
            }
            _ => {}
        }
        self.report();
    }

    /// Notes how long giving way took, after the program's work.
    pub(crate) fn gave_in(&self, time: Duration) {
        if !time.is_zero() {
            self.sleep_ms.store(time.as_millis() as u64, SeqCst);
        }
    }

    /// Returns whether an order to give way or a wake is under way.
    pub(crate) fn is_moving(&self) -> bool {
        self.orders.load(SeqCst) > 0 || self.is_waking.load(SeqCst)
    }
}
