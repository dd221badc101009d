//! A simulated machine: devices, programs, messages that take time, numbers that are late, and trouble.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lowtide_helper::share::{
    AGING, Arbiter, DeviceFree, Event, LATE, MemberId, Other, RESERVE, Rule,
};
use lowtide_proto::share::{Give, Priority, ToAgent, ToArbiter};
use lowtide_testing::Dice;

use super::program::{GIB, MIB, Program, bytes, uuid};

/// The pid of whoever does not share.
const OUTSIDER: u32 = 9;
/// The most that it has on a device.
pub(super) const OUTSIDER_MOST: i64 = 20 * GIB;
const TICK: Duration = Duration::from_millis(50);
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// The kind of a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plot {
    pub(crate) devices: usize,
    pub(crate) programs: usize,
    /// Whether programs die, stop, refuse and are late, outsiders come and go, numbers are late, grants fail.
    pub(crate) is_unfriendly: bool,
    /// How often the work of some programs does not end while they are drained, in a thousand.
    pub(crate) stubborn: u64,
    /// The classes of programs that always work; empty for a mixture.
    pub(crate) crowd: &'static [Priority],
    /// Whether programs have several processes.
    pub(crate) has_families: bool,
    /// What each of those begins with.
    pub(crate) crowd_gib: i64,
}

impl Plot {
    /// Returns whether its programs always work, have one class, and cannot work at the same time.
    fn is_even(&self) -> bool {
        self.crowd_gib > 70 && self.crowd.windows(2).all(|two| two[0] == two[1])
    }
}

/// What a run came to.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed_grants: u64,
    pub(crate) forced: u64,
    pub(crate) longest: Duration,
    pub(crate) moving: f64,
    /// The part of the time of a crowd in which none of it worked, and the least time of one by the most.
    pub(crate) lost: f64,
    pub(crate) evenness: f64,
    pub(crate) time: Duration,
}

#[derive(Debug)]
pub(super) enum Thing {
    Up(usize, ToArbiter),
    Down(usize, ToAgent),
    Request(usize),
    Done(usize, Duration),
    Drained(usize, Give, Duration),
    Slept(usize, Give),
    HeldLong(usize, u64),
    Woken(usize, u64, Duration),
    Gone(usize),
    Birth,
    Tick,
    Trouble,
}

pub(super) struct Device {
    pub(super) capacity: i64,
    pub(super) outsider: i64,
    /// What was free, and since when.
    pub(super) past: VecDeque<(Duration, i64)>,
    pub(super) seen: Duration,
    /// Memory that was taken without asking, and when.
    pub(super) intruders: VecDeque<(Duration, i64)>,
    pub(super) moved: Duration,
    /// Up to when moves of each program are counted: those of a family come at the same time.
    pub(super) moved_until: BTreeMap<u32, Duration>,
}

pub(crate) struct World {
    pub(super) plot: Plot,
    pub(super) dice: Dice,
    pub(super) arbiter: Arbiter,
    pub(super) now: Duration,
    pub(super) things: BTreeMap<(Duration, u64), Thing>,
    pub(super) serial: u64,
    pub(super) devices: Vec<Device>,
    pub(super) programs: Vec<Program>,
    pub(super) is_ticking: bool,
    pub(super) summary: Summary,
    pub(super) failure: Option<String>,
}

impl World {
    pub(crate) fn new(seed: u64, plot: Plot, without: Option<Rule>) -> World {
        let device = |_| Device {
            capacity: 139 * GIB,
            outsider: 0,
            past: VecDeque::from([(Duration::ZERO, 139 * GIB)]),
            seen: Duration::ZERO,
            intruders: VecDeque::new(),
            moved: Duration::ZERO,
            moved_until: BTreeMap::new(),
        };
        let devices = (0..plot.devices).map(device).collect();
        let arbiter = Arbiter::new([]);
        let arbiter = without.into_iter().fold(arbiter, Arbiter::without);
        let mut world = World {
            plot,
            dice: Dice::new(seed),
            arbiter,
            now: Duration::ZERO,
            things: BTreeMap::new(),
            serial: 0,
            devices,
            programs: Vec::new(),
            is_ticking: false,
            summary: Summary::default(),
            failure: None,
        };
        (0..plot.programs).for_each(|_| world.give_birth());
        if plot.is_unfriendly {
            world.at(Duration::from_secs(1), Thing::Trouble);
        }
        world
    }

    /// Runs so many events. Returns what was wrong first.
    pub(crate) fn run(mut self, events: u64) -> Result<Summary, String> {
        for _ in 0..events {
            let Some(((at, _), thing)) = self.things.pop_first() else { break };
            self.work_until(at);
            self.happen(thing);
            self.note_free();
            if let Some(failure) = self.failure.take() {
                return Err(format!("at {at:?}: {failure}"));
            }
        }
        self.check_end();
        self.summary.time = self.now;
        self.failure.take().map_or(Ok(self.summary), Err)
    }

    /// Lets time pass.
    fn work_until(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.now);
        let mut all = self.programs.iter_mut();
        if all.by_ref().filter(|it| it.works()).map(|it| it.worked += passed).count() == 0 {
            self.summary.lost += passed.as_secs_f64();
        }
        self.now = at;
    }

    pub(super) fn after(&mut self, delay: Duration, thing: Thing) {
        self.at(self.now + delay, thing);
    }

    pub(super) fn at(&mut self, at: Duration, thing: Thing) {
        self.serial += 1;
        self.things.insert((at, self.serial), thing);
    }

    pub(super) fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.dice.roll(to - from + 1))
    }

    pub(super) fn number(&mut self, below: u64) -> i64 {
        self.dice.roll(below).cast_signed()
    }

    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    // Memory

    pub(super) fn free(&self, device: usize) -> i64 {
        let on = self.programs.iter().filter(|it| it.is_alive && it.devices.contains(&device));
        let it = &self.devices[device];
        it.capacity - it.outsider - on.map(Program::has).sum::<i64>()
    }

    pub(super) fn note_free(&mut self) {
        for device in 0..self.devices.len() {
            let free = self.free(device);
            let past = &mut self.devices[device].past;
            if past.back().is_some_and(|last| last.1 != free) {
                past.push_back((self.now, free));
            }
            if free < 0 {
                self.fail(format!("device {device} holds more than it has: {free}"));
            }
        }
    }

    /// The driver's numbers: up to half a second late, and never older than those before.
    pub(super) fn numbers(&mut self) -> Vec<DeviceFree> {
        let mut numbers = Vec::new();
        for device in 0..self.devices.len() {
            self.note_free();
            let late = if self.plot.is_unfriendly { self.ms(0, 500) } else { Duration::ZERO };
            let it = &mut self.devices[device];
            it.seen = it.seen.max(self.now.saturating_sub(late));
            while it.past.get(1).is_some_and(|next| next.0 <= it.seen) {
                it.past.pop_front();
            }
            let other = Other { pid: OUTSIDER, command: "outsider".to_owned(), bytes: None };
            let others = if it.outsider > 0 { vec![other] } else { Vec::new() };
            numbers.push(DeviceFree {
                uuid: uuid(device),
                capacity: bytes(it.capacity),
                free: bytes(it.past[0].1),
                others,
            });
        }
        numbers
    }

    pub(super) fn intrude(&mut self, device: usize, bytes: i64) {
        let now = self.now;
        self.devices[device].intruders.push_back((now, bytes));
    }

    pub(super) fn check_grant(&mut self, id: usize) {
        let window = LATE + Duration::from_millis(100);
        for device in self.programs[id].devices.clone() {
            let is_lent = |it: &&Program| it.is_alive && it.is_lent(self.now);
            let lent =
                self.programs.iter().filter(|it| it.devices.contains(&device)).filter(is_lent);
            let mut lent: i64 = lent.map(Program::extra).sum();
            // What is kept for processes of families that have their turn.
            let due = self.programs.iter().filter(|it| it.devices.contains(&device));
            let due = due.filter(|it| it.is_alive && it.is_due && !it.is_lent(self.now));
            lent += due.map(|it| it.back() - it.has()).sum::<i64>();
            let since = self.now.saturating_sub(window);
            let intruders = &mut self.devices[device].intruders;
            intruders.retain(|it| it.0 >= since);
            let excuse: i64 = intruders.iter().map(|it| it.1).sum();
            let left = self.free(device) - lent - RESERVE.0.cast_signed() + excuse;
            if left < 0 {
                let pid = self.programs[id].pid;
                let over = -left / MIB;
                self.fail(format!(
                    "a grant to {pid} promises {over} MiB too much on device {device}"
                ));
            }
        }
    }

    /// Notes that the family of a program has its turn, or not any more.
    pub(super) fn set_due(&mut self, id: usize, is_due: bool) {
        let kin = self.programs[id].clone();
        for it in self.programs.iter_mut().filter(|it| it.is_kin(&kin)) {
            it.is_due = is_due && !it.is_resident();
        }
    }

    // Messages

    pub(super) fn delay(&mut self) -> Duration {
        if self.plot.is_unfriendly && self.dice.one_in(500) {
            return self.ms(100, 3000);
        }
        Duration::from_micros(50 + self.dice.roll(3000))
    }

    pub(super) fn up(&mut self, id: usize, said: ToArbiter) {
        let at = (self.now + self.delay()).max(self.programs[id].up);
        self.programs[id].up = at;
        self.at(at, Thing::Up(id, said));
    }

    pub(super) fn report(&mut self, id: usize) {
        let report = self.programs[id].report(self.now);
        self.up(id, ToArbiter::Report(report));
    }

    pub(super) fn hear(&mut self, id: usize, event: Event) {
        self.arbiter.hear(self.now, MemberId(id as u64), event);
        self.decide();
    }

    pub(super) fn decide(&mut self) {
        if !self.arbiter.is_asked() {
            return;
        }
        for (MemberId(member), _) in self.arbiter.late(self.now) {
            let is_stopped = self.programs[member as usize].stopped_until > self.now;
            self.arbiter.hear(self.now, MemberId(member), Event::Stopped(is_stopped));
        }
        let numbers = self.numbers();
        for (MemberId(member), line) in self.arbiter.decide(self.now, &numbers) {
            let id = member as usize;
            if let ToAgent::Grant { ticket, lease_ms } = line {
                let now = self.now;
                let call = self.programs[id].call.as_mut().filter(|call| call.ticket == ticket);
                if let Some(call) = call {
                    call.granted = Some(now + Duration::from_millis(lease_ms));
                    self.set_due(id, true);
                    self.check_grant(id);
                }
            } else if let ToAgent::Give(_) = line {
                self.set_due(id, false);
            }
            let at = (self.now + self.delay()).max(self.programs[id].down);
            self.programs[id].down = at;
            self.at(at, Thing::Down(id, line));
        }
        if !self.is_ticking {
            self.is_ticking = true;
            self.after(TICK, Thing::Tick);
        }
    }

    pub(super) fn happen(&mut self, thing: Thing) {
        let id = match &thing {
            Thing::Up(id, _)
            | Thing::Down(id, _)
            | Thing::Request(id)
            | Thing::Done(id, _)
            | Thing::Drained(id, ..)
            | Thing::Slept(id, _)
            | Thing::HeldLong(id, _)
            | Thing::Woken(id, ..) => *id,
            Thing::Gone(id) => return self.hear(*id, Event::Left),
            Thing::Tick => {
                self.is_ticking = false;
                self.check_waits();
                return self.decide();
            }
            Thing::Trouble => return self.trouble(),
            Thing::Birth => return self.replace_the_dead(),
        };
        let program = &self.programs[id];
        if !program.is_alive {
            return;
        }
        let (until, is_up) = (program.stopped_until, matches!(thing, Thing::Up(..)));
        if until > self.now && !is_up {
            // It goes on when it is continued.
            return self.at(until, thing);
        }
        match thing {
            Thing::Up(_, said) => self.hear(id, Event::Said(said)),
            Thing::Down(_, line) => self.obey(id, line),
            Thing::Request(_) => self.request(id),
            Thing::Done(_, began) => self.done(id, began),
            Thing::Drained(_, give, took) => self.drained(id, give, took),
            Thing::Slept(_, give) => self.slept(id, &give),
            Thing::HeldLong(_, order) => self.held_long(id, order),
            Thing::Woken(_, ticket, took) => self.woken(id, ticket, took),
            Thing::Gone(_) | Thing::Birth | Thing::Tick | Thing::Trouble => {}
        }
    }

    // What always holds

    /// The longest wait, as the policy states it.
    pub(super) fn bound(&self) -> Duration {
        let alive = self.programs.iter().filter(|it| it.is_alive);
        let switch = alive.clone().map(|it| it.copying() * 2).max().unwrap_or_default();
        let switch_and_more = switch + Duration::from_secs(1);
        let residence = switch_and_more * 10 + Duration::from_secs(60);
        let drain = DRAIN + switch + Duration::from_secs(3);
        AGING * 2 + (residence + drain) * alive.count() as u32
    }

    pub(super) fn check_bound(&mut self, id: usize) {
        let (program, now) = (&self.programs[id], self.now);
        let Some(call) = &program.call else { return };
        let excused = call.excused_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
            + call.excused;
        let waited = now.saturating_sub(call.since + excused);
        self.summary.longest = self.summary.longest.max(waited);
        if waited > self.bound() {
            let what = format!("{} has waited for {waited:?}: {:?}", program.pid, call);
            self.fail(what);
        }
    }

    pub(super) fn check_waits(&mut self) {
        for id in 0..self.programs.len() {
            if self.programs[id].is_alive && self.programs[id].stopped_until < self.now {
                self.check_bound(id);
            }
        }
    }

    pub(super) fn check_end(&mut self) {
        let time = self.now.as_secs_f64();
        for device in &self.devices {
            self.summary.moving = self.summary.moving.max(device.moved.as_secs_f64() / time);
        }
        if self.summary.moving > 0.1 {
            self.fail(format!("{:.1}% of the time went into moving", self.summary.moving * 100.0));
        }
        self.summary.lost /= time;
        let worked = || self.programs.iter().map(|it| it.worked.as_secs_f64());
        self.summary.evenness = worked().fold(time, f64::min) / worked().fold(0.0, f64::max);
        if self.plot.is_even() {
            if self.summary.lost > 0.1 {
                self.fail(format!("{:.1}% of the time nobody worked", self.summary.lost * 100.0));
            }
            if self.summary.evenness < 0.9 {
                self.fail(format!("one had {:.2} of the time of another", self.summary.evenness));
            }
        }
        for program in self.programs.clone() {
            let lived = self.now.saturating_sub(program.born).as_secs_f64();
            let tried = program.tried.as_secs_f64();
            if program.is_alive && tried > 0.05 * lived + DRAIN.as_secs_f64() {
                self.fail(format!("{}: {tried} of {lived} s were failed drains", program.pid));
            }
        }
    }
}
