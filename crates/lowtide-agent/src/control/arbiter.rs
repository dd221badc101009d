//! The standing connection to the arbiter, which decides whose memory is on the devices (`lowtide run --share`).
//!
//! A thread of its own keeps it: starts the helper where there is none, says what calls wait for, hears who gives way.
//! It waits for nobody else in this process. What takes time, the worker does, which then says so by itself.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::line::LineReader;
use lowtide_proto::share::{Join, Priority, ToAgent, ToArbiter, Way};
use lowtide_types::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::worker;
use crate::room::{Arbiter, Room};
use crate::say::say;
use crate::sleep::agent::Agent;
use crate::{gate, obstacles, settings, threads};

/// The pause before the next attempt where no connection could be made.
const RETRY: Duration = Duration::from_secs(5);
/// The time between two looks at whether the program uses its devices.
const TICK: Duration = Duration::from_millis(500);
/// The time without a touch after which a program may be idle.
const QUIET: Duration = Duration::from_millis(20);
/// The time that a line takes once some of it has come, and that the arbiter has to take one.
const LINE_LIMIT: Duration = Duration::from_secs(1);
/// The most bytes of a line that is read, and of a command for people.
const LINE_MOST: usize = 1 << 16;
const COMMAND_MOST: usize = 200;

/// Starts the thread.
pub(crate) fn start(agent: &'static Agent, room: &'static Room, priority: Priority) {
    let limit_ms = room.limit.as_millis() as u64;
    let family = settings::family();
    let join = Join { command: command(), priority, wait_ms: limit_ms, family };
    if let Err(error) = threads::spawn("lowtide-turns", move || keep(agent, room, &join)) {
        room.disconnected(Arbiter::Absent);
        say!("the program takes no turns with others: {error}");
    }
}

/// Returns the command of this process, for people.
fn command() -> String {
    let words = std::fs::read("/proc/thread-self/cmdline").unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    words.trim().chars().filter(|letter| !letter.is_control()).take(COMMAND_MOST).collect()
}

/// Keeps a connection for as long as the process lives.
fn keep(agent: &'static Agent, room: &'static Room, join: &Join) {
    let mut was_said = false;
    loop {
        match connect(agent, join) {
            Ok((stream, lines)) => {
                was_said = false;
                let talk = || Talk::new(agent, room, stream, lines).go_on();
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(talk)).is_err() {
                    obstacles::add_panic();
                    room.disconnected(Arbiter::Absent);
                    return;
                }
                room.disconnected(Arbiter::Sought);
            }
            Err(reason) => {
                room.disconnected(Arbiter::Absent);
                if !std::mem::replace(&mut was_said, true) {
                    say!("the program takes no turns with others for now: {reason}");
                }
                thread::sleep(RETRY);
            }
        }
    }
}

fn connect(agent: &Agent, join: &Join) -> Result<(UnixStream, LineReader), String> {
    let connection = agent.suspension.connect_to_helper()?;
    let joined = connection.join(join.clone()).map_err(|error| error.to_string())?;
    // A socket of ours takes it.
    let _set = joined.0.set_write_timeout(Some(LINE_LIMIT));
    Ok(joined)
}

/// A connection.
struct Talk {
    agent: &'static Agent,
    room: &'static Room,
    stream: UnixStream,
    lines: LineReader,
    number: u64,
    touches: u64,
    /// The last moment at which the touches were others.
    touched: Instant,
    /// The memory on the devices that was last told.
    told: Bytes,
}

impl Talk {
    fn new(
        agent: &'static Agent,
        room: &'static Room,
        stream: UnixStream,
        lines: LineReader,
    ) -> Talk {
        let (number, touches, touched) = (room.connected(), gate::touches(), Instant::now());
        let told = Bytes::ZERO;
        Talk { agent, room, stream, lines, number, touches, touched, told }
    }

    /// Says and hears until the connection ends.
    fn go_on(mut self) {
        loop {
            // Some may have come with the answer to joining.
            let has_failed = self.lines.has_line() && self.hear().is_err();
            if has_failed || self.say().is_err() {
                return;
            }
            let limit = Timespec::try_from(TICK).ok();
            let (stream, bell) = (&self.stream, self.room.bell());
            let mut all =
                [PollFd::new(stream, PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
            let _ready = poll(&mut all, limit.as_ref());
            let has_come = !all[0].revents().is_empty();
            self.look();
            if has_come && self.hear().is_err() {
                return;
            }
        }
    }

    /// Writes what is to be said: a report first, which is what everything else is about.
    fn say(&mut self) -> std::io::Result<()> {
        let mut outgoing = self.room.take_outgoing();
        let is_report = |line: &ToArbiter| matches!(line, ToArbiter::Report(_));
        let says_more = !outgoing.needs.is_empty() || !outgoing.lines.iter().all(is_report);
        if says_more || outgoing.must_report {
            self.write(&ToArbiter::Report(self.room.report_of(self.agent, None)))?;
        }
        for (ticket, has_failed) in outgoing.needs.drain(..) {
            if has_failed {
                self.write(&ToArbiter::Failed { ticket })?;
            }
            if let Some(need) = self.room.need_of(self.agent, ticket) {
                self.write(&need)?;
            }
        }
        outgoing.lines.iter().try_for_each(|line| self.write(line))
    }

    fn write(&mut self, line: &ToArbiter) -> std::io::Result<()> {
        use std::io::Write as _;
        self.stream.write_all(line.to_line().as_bytes())
    }

    /// Reads what has come.
    fn hear(&mut self) -> std::io::Result<()> {
        loop {
            let line = self.lines.read(&self.stream, LINE_MOST, Instant::now() + LINE_LIMIT)?;
            match ToAgent::from_line(&line) {
                Ok(ToAgent::Look) => self.answer_look(),
                Ok(ToAgent::Give(give)) => {
                    self.room.begin_order();
                    self.write(&ToArbiter::Report(self.room.report_of(self.agent, None)))?;
                    // The helper is there: it has just asked.
                    let is_off = give.way == Way::Suspend;
                    let way = is_off.then(|| self.agent.way_to_suspend().ok().flatten()).flatten();
                    worker::give_way(give, way, self.number);
                }
                Ok(ToAgent::Leave { order }) => self.room.tell_holder(order, true),
                Ok(ToAgent::Stay { order }) => self.room.tell_holder(order, false),
                Ok(ToAgent::Grant { ticket, lease_ms }) => {
                    self.room.grant(ticket, Duration::from_millis(lease_ms));
                }
                Ok(ToAgent::Refuse { ticket, why }) => self.room.refuse(ticket, why),
                Ok(ToAgent::Wait(said)) => self.room.note(said),
                Ok(ToAgent::Fixed(device)) => self.room.note_fixed(device),
                Err(error) => return Err(error.into()),
            }
            if !self.lines.has_line() {
                return Ok(());
            }
        }
    }

    /// Answers whether the program is idle. Whether something runs on the devices, the worker finds out.
    fn answer_look(&mut self) {
        if self.room.is_moving() || gate::is_asleep() {
            self.room.report();
            return;
        }
        self.look();
        if self.touched.elapsed() < QUIET {
            thread::sleep(QUIET);
            self.look();
        }
        match self.touched.elapsed() {
            quiet if quiet >= QUIET => worker::look(quiet, self.number),
            _ => self.room.report(),
        }
    }

    /// Looks whether the program uses its devices, and says so where its memory has changed.
    fn look(&mut self) {
        let touches = gate::touches();
        if touches == self.touches {
            return;
        }
        (self.touches, self.touched) = (touches, Instant::now());
        let on_devices = self.agent.memory.contexts().iter().map(|one| one.on_device()).sum();
        if self.told != on_devices {
            self.told = on_devices;
            self.room.report();
        }
    }
}
