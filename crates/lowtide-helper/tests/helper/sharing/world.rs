//! A simulated machine: devices, programs, messages that take time, numbers that are late, and trouble.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lowtide_helper::share::{
    AGING, Arbiter, DeviceFree, Event, LATE, MemberId, Other, RESERVE, Rule,
};
use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{Give, Priority, State, ToAgent, ToArbiter, Way};
use lowtide_testing::Dice;

use super::program::{Call, GIB, MIB, Program, bytes, most, uuid};

/// The pid of whoever does not share.
const OUTSIDER: u32 = 9;
const TICK: Duration = Duration::from_millis(50);
const DRAIN: Duration = Duration::from_secs(10);

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
    /// What each of those begins with.
    pub(crate) crowd_gib: i64,
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
    pub(crate) time: Duration,
}

#[derive(Debug)]
enum Thing {
    Up(usize, ToArbiter),
    Down(usize, ToAgent),
    Request(usize),
    Done(usize, Duration),
    Drained(usize, Give, Duration),
    Slept(usize, Give),
    Woken(usize, u64, Duration),
    Gone(usize),
    Tick,
    Trouble,
}

struct Device {
    capacity: i64,
    outsider: i64,
    /// What was free, and since when.
    past: VecDeque<(Duration, i64)>,
    seen: Duration,
    /// Memory that was taken without asking, and when.
    intruders: VecDeque<(Duration, i64)>,
    moved: Duration,
}

pub(crate) struct World {
    plot: Plot,
    dice: Dice,
    arbiter: Arbiter,
    now: Duration,
    things: BTreeMap<(Duration, u64), Thing>,
    serial: u64,
    devices: Vec<Device>,
    programs: Vec<Program>,
    is_ticking: bool,
    summary: Summary,
    failure: Option<String>,
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
            self.now = at;
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

    fn after(&mut self, delay: Duration, thing: Thing) {
        self.at(self.now + delay, thing);
    }

    fn at(&mut self, at: Duration, thing: Thing) {
        self.serial += 1;
        self.things.insert((at, self.serial), thing);
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.dice.roll(to - from + 1))
    }

    fn number(&mut self, below: u64) -> i64 {
        self.dice.roll(below).cast_signed()
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    // Memory

    fn free(&self, device: usize) -> i64 {
        let on = self.programs.iter().filter(|it| it.is_alive && it.devices.contains(&device));
        let it = &self.devices[device];
        it.capacity - it.outsider - on.map(Program::has).sum::<i64>()
    }

    fn note_free(&mut self) {
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
    fn numbers(&mut self) -> Vec<DeviceFree> {
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

    fn intrude(&mut self, device: usize, bytes: i64) {
        let now = self.now;
        self.devices[device].intruders.push_back((now, bytes));
    }

    fn check_grant(&mut self, id: usize) {
        let window = LATE + Duration::from_millis(100);
        for device in self.programs[id].devices.clone() {
            let is_lent = |it: &&Program| {
                let until = it.call.as_ref().and_then(|call| call.granted);
                it.is_alive && until.is_some_and(|until| until > self.now)
            };
            let lent =
                self.programs.iter().filter(|it| it.devices.contains(&device)).filter(is_lent);
            let lent: i64 = lent.map(Program::extra).sum();
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

    // Messages

    fn delay(&mut self) -> Duration {
        if self.plot.is_unfriendly && self.dice.one_in(500) {
            return self.ms(100, 3000);
        }
        Duration::from_micros(50 + self.dice.roll(3000))
    }

    fn up(&mut self, id: usize, said: ToArbiter) {
        let at = (self.now + self.delay()).max(self.programs[id].up);
        self.programs[id].up = at;
        self.at(at, Thing::Up(id, said));
    }

    fn report(&mut self, id: usize) {
        let report = self.programs[id].report(self.now);
        self.up(id, ToArbiter::Report(report));
    }

    fn hear(&mut self, id: usize, event: Event) {
        self.arbiter.hear(self.now, MemberId(id as u64), event);
        self.decide();
    }

    fn decide(&mut self) {
        if !self.arbiter.is_asked() {
            return;
        }
        for (MemberId(member), _) in self.arbiter.silent(self.now) {
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
                    self.check_grant(id);
                }
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

    fn happen(&mut self, thing: Thing) {
        let id = match &thing {
            Thing::Up(id, _)
            | Thing::Down(id, _)
            | Thing::Request(id)
            | Thing::Done(id, _)
            | Thing::Drained(id, ..)
            | Thing::Slept(id, _)
            | Thing::Woken(id, ..) => *id,
            Thing::Gone(id) => return self.hear(*id, Event::Left),
            Thing::Tick => {
                self.is_ticking = false;
                self.check_waits();
                return self.decide();
            }
            Thing::Trouble => return self.trouble(),
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
            Thing::Woken(_, ticket, took) => self.woken(id, ticket, took),
            Thing::Gone(_) | Thing::Tick | Thing::Trouble => {}
        }
    }

    // Programs

    fn give_birth(&mut self) {
        let id = self.programs.len();
        let all: Vec<usize> = (0..self.plot.devices).collect();
        let mut devices = vec![self.dice.pick(&all)];
        if self.dice.one_in(3) {
            devices = all;
        }
        let staying = 400 * MIB + self.number(200) * MIB;
        if devices.iter().any(|device| self.free(*device) < staying) {
            return;
        }
        let (live, priority, is_tireless) = match self.plot.crowd {
            [] => {
                let live = GIB * (20 + self.number(56));
                (live, self.dice.pick(&Priority::ALL), self.dice.one_in(3))
            }
            crowd => (self.plot.crowd_gib * GIB, crowd[id % crowd.len()], true),
        };
        for device in &devices {
            self.intrude(*device, staying);
        }
        let program = Program {
            pid: 1000 + id as u32,
            priority,
            devices,
            state: State::Awake,
            base: live,
            live: 0,
            cached: 0,
            staying,
            ms_per_gib: 1 + if self.plot.crowd.is_empty() { self.dice.roll(20) } else { 0 },
            is_tireless,
            stubborn: if self.dice.one_in(6) { self.plot.stubborn } else { 5 },
            requests: 1,
            is_busy: false,
            changed: self.now,
            call: None,
            order: None,
            is_forced: false,
            stopped_until: Duration::ZERO,
            capture_until: Duration::ZERO,
            is_alive: true,
            born: self.now,
            tried: Duration::ZERO,
            slept: Duration::ZERO,
            woken: Duration::ZERO,
            up: self.now,
            down: self.now,
        };
        let target = Target { pid: program.pid, start_ticks: 1 };
        let join = program.join();
        self.programs.push(program);
        self.hear(id, Event::Joined { target, join });
        self.report(id);
        self.ask(id, live, true);
        let first = self.ms(10, 3000);
        self.after(first, Thing::Request(id));
    }

    /// Has a program ask for room, to wake or for more memory.
    fn ask(&mut self, id: usize, more: i64, can_leave: bool) {
        self.serial += 1;
        let call = Call {
            ticket: self.serial,
            since: self.now,
            more,
            can_leave,
            granted: None,
            why: String::new(),
            excused: Duration::ZERO,
            excused_since: None,
        };
        self.programs[id].call = Some(call);
        let need = self.programs[id].need().expect("it was set");
        self.up(id, ToArbiter::Need(need));
    }

    /// Brings somebody's next request, often one of the first programs', sometimes many at once.
    fn request(&mut self, id: usize) {
        self.programs[id].requests += 1;
        let rank = 1 + id as u64 % self.plot.programs as u64;
        let burst = self.dice.one_in(10);
        let pause = if burst { self.ms(0, 50) } else { self.ms(100, 2500 * rank) };
        self.after(pause, Thing::Request(id));
        self.work(id);
    }

    fn work(&mut self, id: usize) {
        let program = &mut self.programs[id];
        let has_work = program.requests > 0 || program.is_tireless;
        if !has_work || program.is_busy || program.call.is_some() || program.order.is_some() {
            return;
        }
        if program.state != State::Awake {
            // A touch at the closed gate.
            if !program.is_resident() {
                program.is_busy = true;
                program.changed = self.now;
                self.ask(id, 0, true);
            }
            return;
        }
        program.is_busy = true;
        program.changed = self.now;
        let time = if program.is_tireless { self.ms(50, 3000) } else { self.ms(2, 400) };
        self.after(time, Thing::Done(id, self.now));
    }

    fn done(&mut self, id: usize, began: Duration) {
        let program = &mut self.programs[id];
        if program.changed != began || program.call.is_some() || program.state != State::Awake {
            return;
        }
        if program.order.is_some() {
            // It is being drained; what it does then is decided there.
            return;
        }
        program.is_busy = false;
        program.changed = self.now;
        program.requests = program.requests.saturating_sub(1);
        let cached = program.cached;
        if self.dice.one_in(8) {
            self.allocate(id);
        } else if cached == 0 && self.dice.one_in(16) {
            let program = &mut self.programs[id];
            let part = (program.live - program.base).max(0);
            (program.live, program.cached) = (program.live - part, part);
        }
        self.work(id);
    }

    fn allocate(&mut self, id: usize) {
        let does_not_fit = self.dice.one_in(40);
        let more = if does_not_fit { 200 * GIB } else { GIB / 4 * (1 + self.number(24)) };
        let devices = self.programs[id].devices.clone();
        let fits = devices.iter().all(|device| self.free(*device) >= more);
        let is_small = self.programs[id].live + more < self.programs[id].base + 12 * GIB;
        let is_small = is_small || does_not_fit;
        if !is_small {
            return;
        }
        self.programs[id].is_busy = true;
        if fits {
            // It found room, and asked nobody.
            for device in &devices {
                self.intrude(*device, more);
            }
            self.programs[id].live += more;
            self.programs[id].is_busy = false;
            return;
        }
        let can_leave = !self.dice.one_in(10);
        self.ask(id, more, can_leave);
    }

    // Agents

    fn obey(&mut self, id: usize, line: ToAgent) {
        match line {
            ToAgent::Look => self.report(id),
            ToAgent::Give(give) => self.give(id, give),
            ToAgent::Grant { ticket, .. } => self.granted(id, ticket),
            ToAgent::Refuse { ticket, why } => self.refused(id, ticket, &why),
            ToAgent::Wait(wait) => {
                let now = self.now;
                let call =
                    self.programs[id].call.as_mut().filter(|call| call.ticket == wait.ticket);
                let Some(call) = call else { return };
                let phrases = [
                    "is stopped",
                    "has not answered",
                    "captures a graph",
                    "did not give way",
                    "does not share",
                    "has not done",
                ];
                let is_excused = phrases.iter().any(|phrase| wait.why.contains(phrase));
                let before = call.excused_since.take();
                call.excused += before.map_or(Duration::ZERO, |since| now.saturating_sub(since));
                call.excused_since = is_excused.then_some(now);
                call.why = wait.why;
            }
        }
    }

    fn give(&mut self, id: usize, give: Give) {
        let now = self.now;
        let is_lent = self.programs[id].call.as_ref().is_some_and(|call| call.granted.is_some());
        if is_lent {
            return self
                .fail(format!("{} is told to give what it was granted", self.programs[id].pid));
        }
        self.programs[id].order = Some(give.order);
        let asker = give.for_whom.split(' ').nth(1).and_then(|pid| pid.parse::<u32>().ok());
        let asker = asker.and_then(|pid| self.programs.iter().find(|it| it.pid == pid));
        let class = asker.map_or(Priority::Interactive, |asker| asker.priority);
        let program = &self.programs[id];
        let inside = program.call.as_ref().is_some_and(|call| !call.can_leave);
        if program.capture_until > now || inside || program.state == State::Waking {
            return self.refuse(id, &give, Duration::ZERO, "a capture, or a call inside");
        }
        let works = program.is_busy && program.call.is_none();
        // What was idle a moment ago counts as idle.
        let worked = now.saturating_sub(program.changed) > Duration::from_millis(200);
        let worked = worked || program.is_tireless;
        let is_forced = works && worked && class <= program.priority;
        let took = if !works || give.way == Way::Caches {
            Duration::ZERO
        } else if self.dice.roll(1000) < self.programs[id].stubborn {
            self.ms(5000, 60_000)
        } else if self.dice.one_in(20) {
            self.ms(100, 4000)
        } else {
            self.ms(1, 60)
        };
        self.programs[id].is_forced |= is_forced;
        if give.way != Way::Caches && self.programs[id].state == State::Awake {
            self.programs[id].state = State::Draining;
        }
        self.report(id);
        self.after(took.min(DRAIN), Thing::Drained(id, give, took));
    }

    fn refuse(&mut self, id: usize, give: &Give, tried: Duration, reason: &str) {
        let program = &mut self.programs[id];
        (program.order, program.is_forced) = (None, false);
        program.tried += tried;
        if program.state == State::Draining {
            program.state = State::Awake;
        }
        self.report(id);
        let (order, tried_ms) = (give.order, tried.as_millis() as u64);
        self.up(id, ToArbiter::Refused { order, reason: reason.to_owned(), tried_ms });
        self.go_on(id);
    }

    /// Goes on with work that was held up.
    fn go_on(&mut self, id: usize) {
        if self.programs[id].call.is_none() {
            self.programs[id].is_busy = false;
            self.work(id);
        }
    }

    fn drained(&mut self, id: usize, give: Give, took: Duration) {
        if took > DRAIN {
            return self.refuse(id, &give, DRAIN, "its work did not end in 10 s");
        }
        let program = &mut self.programs[id];
        // Caches go first, and the rest when it has been copied.
        let freed = if program.is_resident() { program.cached } else { 0 };
        program.cached = 0;
        let copies = program.is_resident() && give.way != Way::Caches;
        if give.way == Way::Caches {
            return self.gave(id, &give, freed, Duration::ZERO);
        }
        let mut time = if copies { program.copying() } else { Duration::ZERO };
        if give.way == Way::Suspend {
            time += Duration::from_secs(1);
        }
        self.after(time, Thing::Slept(id, give));
    }

    fn slept(&mut self, id: usize, give: &Give) {
        let program = &mut self.programs[id];
        let before = program.has();
        let took = program.copying();
        program.state = if give.way == Way::Suspend { State::Suspended } else { State::Asleep };
        program.slept = took;
        let freed = before - program.has();
        self.count_move(id, took);
        self.gave(id, give, freed, took);
    }

    fn gave(&mut self, id: usize, give: &Give, freed: i64, took: Duration) {
        self.programs[id].order = None;
        self.report(id);
        // A call that waits tells its need as it is now, before the order ends: no grant can cross it.
        let need = self.programs[id].need();
        if let Some(need) = need.clone() {
            self.up(id, ToArbiter::Need(need));
        }
        let freed = vec![DeviceBytes { uuid: uuid(0), bytes: bytes(freed.max(0)) }];
        let gave = ToArbiter::Gave { order: give.order, freed, took_ms: took.as_millis() as u64 };
        self.up(id, gave);
        if need.is_none() {
            self.go_on(id);
        }
    }

    fn count_move(&mut self, id: usize, took: Duration) {
        if self.programs[id].is_forced {
            self.summary.forced += 1;
            for device in self.programs[id].devices.clone() {
                self.devices[device].moved += took;
            }
        }
    }

    fn granted(&mut self, id: usize, ticket: u64) {
        let now = self.now;
        let call = self.programs[id].call.as_ref().filter(|call| call.ticket == ticket);
        let Some(until) = call.and_then(|call| call.granted) else {
            return self.up(id, ToArbiter::Drop { ticket });
        };
        let extra = self.programs[id].extra();
        let devices = self.programs[id].devices.clone();
        let fits = devices.iter().all(|device| self.free(*device) >= extra);
        let breaks = self.plot.is_unfriendly && self.dice.one_in(50);
        if !fits || breaks || now >= until {
            self.summary.failed_grants += 1;
            if let Some(call) = self.programs[id].call.as_mut() {
                call.granted = None;
            }
            return self.up(id, ToArbiter::Failed { ticket });
        }
        // The memory is there at once, its content later.
        let program = &mut self.programs[id];
        let was_away = !program.is_resident();
        program.live += program.call.as_ref().map_or(0, |call| call.more);
        if let Some(call) = program.call.as_mut() {
            call.more = 0;
        }
        program.state = State::Waking;
        let took = if was_away { program.copying() } else { Duration::from_millis(1) };
        self.report(id);
        self.after(took, Thing::Woken(id, ticket, if was_away { took } else { Duration::ZERO }));
    }

    fn woken(&mut self, id: usize, ticket: u64, took: Duration) {
        self.check_bound(id);
        self.summary.served += 1;
        self.count_move(id, took);
        let program = &mut self.programs[id];
        if took > Duration::ZERO {
            program.woken = took;
        }
        (program.state, program.call, program.is_forced) = (State::Awake, None, false);
        self.report(id);
        self.up(id, ToArbiter::Used { ticket });
        self.go_on(id);
    }

    fn refused(&mut self, id: usize, ticket: u64, why: &str) {
        let Some(call) = self.programs[id].call.take_if(|call| call.ticket == ticket) else {
            return;
        };
        self.summary.refused += 1;
        let capacity = self.devices[0].capacity;
        let is_wake = !self.programs[id].is_resident();
        let fits = self.programs[id].whole(&call) <= most(capacity);
        let is_fair = !fits || !call.can_leave || why.contains("cannot be moved");
        if !is_fair {
            self.fail(format!("{} is refused what fits: {why}", self.programs[id].pid));
        }
        if is_wake || self.programs[id].live == 0 {
            // Its call fails, and so does the program.
            self.die(id);
        } else {
            self.go_on(id);
        }
    }

    // Trouble

    fn die(&mut self, id: usize) {
        self.programs[id].is_alive = false;
        let seen = self.delay();
        self.after(seen, Thing::Gone(id));
        self.give_birth();
    }

    fn trouble(&mut self) {
        let next = self.ms(200, 8000);
        self.after(next, Thing::Trouble);
        let id = self.dice.index(self.programs.len());
        let now = self.now;
        let device = self.dice.index(self.devices.len());
        match self.dice.roll(8) {
            0 if self.programs[id].is_alive => self.die(id),
            1 => self.programs[id].stopped_until = now + self.ms(100, 15_000),
            2 | 3 => self.programs[id].capture_until = now + self.ms(10, 4000),
            4 => {
                let grown = (self.number(12) * GIB).min(self.free(device));
                if self.devices[device].outsider + grown < 20 * GIB {
                    self.devices[device].outsider += grown;
                    self.intrude(device, grown);
                }
            }
            5 => self.devices[device].outsider = 0,
            _ => {
                let alive = self.programs.iter().filter(|it| it.is_alive).count();
                if alive < self.plot.programs {
                    self.give_birth();
                }
            }
        }
    }

    // What always holds

    /// The longest wait, as the policy states it.
    fn bound(&self) -> Duration {
        let alive = self.programs.iter().filter(|it| it.is_alive);
        let switch = alive.clone().map(|it| it.copying() * 2).max().unwrap_or_default();
        let residence = (switch * 10).max(Duration::from_secs(2)) + Duration::from_secs(60);
        let drain = DRAIN + switch + Duration::from_secs(3);
        AGING * 2 + (residence + drain) * alive.count() as u32
    }

    fn check_bound(&mut self, id: usize) {
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

    fn check_waits(&mut self) {
        for id in 0..self.programs.len() {
            if self.programs[id].is_alive && self.programs[id].stopped_until < self.now {
                self.check_bound(id);
            }
        }
    }

    fn check_end(&mut self) {
        let time = self.now.as_secs_f64();
        for device in &self.devices {
            self.summary.moving = self.summary.moving.max(device.moved.as_secs_f64() / time);
        }
        if self.summary.moving > 0.1 {
            self.fail(format!("{:.1}% of the time went into moving", self.summary.moving * 100.0));
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
