//! What simulated programs and their agents do, and what befalls them.

use std::time::Duration;

use lowtide_helper::share::Event;
use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{Give, Priority, State, ToAgent, ToArbiter, Way};

use super::program::{Call, GIB, MIB, Program, bytes, most, uuid};
use super::world::{DRAIN, OUTSIDER_MOST, Thing, World};

impl World {
    // Programs

    pub(super) fn give_birth(&mut self) {
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
        let is_fixed = self.plot.is_unfriendly && self.dice.one_in(20);
        let target = Target { pid: 1000 + id as u32, start_ticks: 1 };
        let kin: Vec<Program> = self.programs.iter().filter(|it| it.is_alive).cloned().collect();
        let mut family = self.plot.has_families.then_some(target);
        if family.is_some() && !kin.is_empty() && !self.dice.one_in(3) {
            family = self.dice.pick(&kin).family;
        }
        let (live, priority, is_tireless) = match self.plot.crowd {
            [] => {
                let (least, more) = if family.is_some() { (5, 40) } else { (20, 56) };
                let live = GIB * if is_fixed { 5 } else { least + self.number(more) };
                let of_kin = kin.iter().find(|it| family.is_some() && it.family == family);
                let class = of_kin.map(|it| it.priority);
                let class = class.unwrap_or_else(|| self.dice.pick(&Priority::ALL));
                (live, class, self.dice.one_in(3))
            }
            crowd => (self.plot.crowd_gib * GIB, crowd[id % crowd.len()], true),
        };
        for device in &devices {
            self.intrude(*device, staying);
        }
        let program = Program {
            pid: target.pid,
            family,
            held: None,
            is_astray: false,
            is_due: false,
            priority,
            devices,
            state: State::Awake,
            base: live,
            live: 0,
            cached: 0,
            staying,
            // Of a crowd each has its own speed.
            ms_per_gib: 1 + if self.plot.crowd.is_empty() {
                self.dice.roll(20)
            } else {
                id as u64 % 3 * 3
            },
            is_copying: false,
            worked: Duration::ZERO,
            is_tireless,
            is_fixed,
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
        let join = program.join();
        self.programs.push(program);
        self.hear(id, Event::Joined { target, join });
        self.report(id);
        self.ask(id, live, true);
        let first = self.ms(10, 3000);
        self.after(first, Thing::Request(id));
    }

    /// Has a program ask for room, to wake or for more memory.
    pub(super) fn ask(&mut self, id: usize, more: i64, can_leave: bool) {
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
    pub(super) fn request(&mut self, id: usize) {
        self.programs[id].requests += 1;
        let rank = 1 + id as u64 % self.plot.programs as u64;
        let burst = self.dice.one_in(10);
        let pause = if burst { self.ms(0, 50) } else { self.ms(100, 2500 * rank) };
        self.after(pause, Thing::Request(id));
        self.work(id);
    }

    pub(super) fn work(&mut self, id: usize) {
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

    pub(super) fn done(&mut self, id: usize, began: Duration) {
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

    pub(super) fn allocate(&mut self, id: usize) {
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

    pub(super) fn obey(&mut self, id: usize, line: ToAgent) {
        match line {
            ToAgent::Look => self.report(id),
            ToAgent::Fixed(_) => self.fail("an answer without a question".to_owned()),
            ToAgent::Give(give) => self.give(id, give),
            ToAgent::Leave { order } => {
                if let Some(give) = self.let_go(id, order) {
                    self.copy(id, give);
                }
            }
            ToAgent::Stay { order } => {
                let since = self.programs[id].held.as_ref().map_or(self.now, |held| held.1);
                if let Some(give) = self.let_go(id, order) {
                    self.refuse(id, &give, self.now.saturating_sub(since), "others stay");
                }
            }
            ToAgent::Grant { ticket, .. } => self.granted(id, ticket),
            ToAgent::Refuse { ticket, why } => self.refused(id, ticket, &why),
            ToAgent::Wait(wait) => {
                let now = self.now;
                let call =
                    self.programs[id].call.as_mut().filter(|call| call.ticket == wait.ticket);
                let Some(call) = call else { return };
                let phrases = [
                    "is stopped",
                    "cannot sleep",
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

    pub(super) fn give(&mut self, id: usize, give: Give) {
        let now = self.now;
        let is_lent = self.programs[id].call.as_ref().is_some_and(|call| call.granted.is_some());
        if is_lent {
            return self
                .fail(format!("{} is told to give what it was granted", self.programs[id].pid));
        }
        if self.programs[id].is_fixed {
            return self.fail(format!("{} is told to give what it cannot", self.programs[id].pid));
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
        let took = if !works {
            Duration::ZERO
        } else if self.dice.roll(1000) < self.programs[id].stubborn {
            self.ms(5000, 60_000)
        } else if self.dice.one_in(20) {
            self.ms(100, 4000)
        } else {
            self.ms(1, 60)
        };
        self.programs[id].is_forced |= is_forced;
        if self.programs[id].state == State::Awake {
            self.programs[id].state = State::Draining;
        }
        self.report(id);
        let drain = Duration::from_millis(give.drain_ms);
        if drain > DRAIN {
            self.fail(format!("a drain may take {drain:?}"));
        }
        self.after(took.min(drain), Thing::Drained(id, give, took));
    }

    pub(super) fn refuse(&mut self, id: usize, give: &Give, tried: Duration, reason: &str) {
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
    pub(super) fn go_on(&mut self, id: usize) {
        if self.programs[id].call.is_none() {
            self.programs[id].is_busy = false;
            self.work(id);
        }
    }

    pub(super) fn drained(&mut self, id: usize, give: Give, took: Duration) {
        let drain = Duration::from_millis(give.drain_ms);
        if took > drain {
            return self.refuse(id, &give, drain, "its work did not end");
        }
        if !give.holds {
            return self.copy(id, give);
        }
        let order = give.order;
        self.programs[id].held = Some((give, self.now.saturating_sub(took)));
        self.up(id, ToArbiter::Held { order });
        self.after(DRAIN + Duration::from_secs(2), Thing::HeldLong(id, order));
    }

    /// Ends the time for which a program holds; `None` if it does not, for this order.
    pub(super) fn let_go(&mut self, id: usize, order: u64) -> Option<Give> {
        self.programs[id].held.take_if(|held| held.0.order == order).map(|held| held.0)
    }

    pub(super) fn held_long(&mut self, id: usize, order: u64) {
        if let Some(give) = self.let_go(id, order) {
            self.programs[id].is_astray = true;
            self.refuse(id, &give, DRAIN, "it was not told to leave");
        }
    }

    pub(super) fn copy(&mut self, id: usize, give: Give) {
        let around = self.around();
        let program = &mut self.programs[id];
        // Caches go first, and the rest when it has been copied.
        (program.cached, program.is_copying) = (0, true);
        let mut time =
            if program.is_resident() { program.copying() + around } else { Duration::ZERO };
        if give.way == Way::Suspend {
            time += Duration::from_secs(1);
        }
        self.after(time, Thing::Slept(id, give));
    }

    pub(super) fn slept(&mut self, id: usize, give: &Give) {
        let program = &mut self.programs[id];
        let before = program.has();
        let took = program.copying();
        program.is_copying = false;
        program.state = if give.way == Way::Suspend { State::Suspended } else { State::Asleep };
        program.slept = took;
        let freed = before - program.has();
        let program = program.clone();
        let is_left = |it: &&Program| it.is_kin(&program) && it.works() && it.born < self.now;
        let left = self.programs.iter().find(|it| is_left(it) && !it.is_astray);
        if let Some(left) = left {
            let (one, other) = (program.pid, left.pid);
            self.fail(format!("{other} works while the memory of {one} is off the device"));
        }
        self.count_move(id, took);
        self.gave(id, give, freed, took);
    }

    pub(super) fn gave(&mut self, id: usize, give: &Give, freed: i64, took: Duration) {
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

    /// What a move takes beside the copies, and agents do not count: a framework's cache, mappings.
    pub(super) fn around(&mut self) -> Duration {
        if self.plot.crowd.is_empty() { Duration::ZERO } else { self.ms(20, 150) }
    }

    pub(super) fn count_move(&mut self, id: usize, took: Duration) {
        if self.programs[id].is_forced {
            self.summary.forced += 1;
            let Program { devices, pid, family, .. } = self.programs[id].clone();
            for device in devices {
                let device = &mut self.devices[device];
                let until = device.moved_until.entry(family.map_or(pid, |first| first.pid));
                let until = until.or_default();
                device.moved += took.min(self.now.saturating_sub(*until));
                *until = self.now;
            }
        }
    }

    pub(super) fn granted(&mut self, id: usize, ticket: u64) {
        let now = self.now;
        let call = self.programs[id].call.as_ref().filter(|call| call.ticket == ticket);
        let Some(until) = call.and_then(|call| call.granted) else {
            return self.up(id, ToArbiter::Drop { ticket });
        };
        if self.programs[id].state == State::Waking {
            // It takes its memory already: a late grant for the same call.
            return;
        }
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
        let around = self.around();
        self.after(
            took + around,
            Thing::Woken(id, ticket, if was_away { took } else { Duration::ZERO }),
        );
    }

    pub(super) fn woken(&mut self, id: usize, ticket: u64, took: Duration) {
        self.check_bound(id);
        self.summary.served += 1;
        self.count_move(id, took);
        let program = &mut self.programs[id];
        if took > Duration::ZERO {
            program.woken = took;
        }
        (program.state, program.call, program.is_forced) = (State::Awake, None, false);
        (program.is_due, program.is_astray) = (false, false);
        self.report(id);
        self.up(id, ToArbiter::Used { ticket });
        self.go_on(id);
    }

    pub(super) fn refused(&mut self, id: usize, ticket: u64, why: &str) {
        let Some(call) = self.programs[id].call.take_if(|call| call.ticket == ticket) else {
            return;
        };
        self.summary.refused += 1;
        let is_wake = !self.programs[id].is_resident();
        let (own, asker) = (self.programs[id].whole(&call), self.programs[id].clone());
        // An outsider that has just ended may still be counted.
        let fits = self.programs[id].devices.iter().all(|device| {
            let others = self.programs.iter().filter(|it| it.pid != asker.pid && it.is_alive);
            let there = others.filter(|it| it.devices.contains(device));
            let (kin, others): (Vec<_>, Vec<_>) = there.partition(|it| it.is_kin(&asker));
            // The process that keeps a family may be on another device.
            let keeps = |it: &Program, kept: &Program| it.pid == kept.pid || it.is_kin(kept);
            let fixing = self.programs.iter().filter(|it| it.is_alive && it.is_fixed);
            let fixed = others.iter().filter(|kept| fixing.clone().any(|it| keeps(it, kept)));
            let fixed: i64 = fixed.map(|it| it.has()).sum();
            let whole = own + kin.iter().map(|it| it.back()).sum::<i64>();
            whole <= most(self.devices[*device].capacity) - fixed - OUTSIDER_MOST
        });
        if fits && call.can_leave {
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

    pub(super) fn die(&mut self, id: usize) {
        self.programs[id].is_alive = false;
        let seen = self.delay();
        self.after(seen, Thing::Gone(id));
        let pause = self.ms(100, 5000);
        self.after(pause, Thing::Birth);
    }

    /// Has another program begin, until there are as many as in the plot.
    pub(super) fn replace_the_dead(&mut self) {
        let alive = |world: &World| world.programs.iter().filter(|it| it.is_alive).count();
        if alive(self) < self.plot.programs {
            self.give_birth();
            if alive(self) < self.plot.programs {
                self.after(Duration::from_secs(1), Thing::Birth);
            }
        }
    }

    pub(super) fn trouble(&mut self) {
        let next = self.ms(200, 8000);
        self.after(next, Thing::Trouble);
        let id = self.dice.index(self.programs.len());
        let now = self.now;
        let device = self.dice.index(self.devices.len());
        match self.dice.roll(8) {
            0 if self.programs[id].is_alive => self.die(id),
            1 => {
                let is_long = self.dice.one_in(10);
                let time = if is_long { self.ms(100_000, 300_000) } else { self.ms(100, 15_000) };
                self.programs[id].stopped_until = now + time;
                if let Some(call) = self.programs[id].call.as_mut() {
                    call.excused += time;
                }
            }
            2 | 3 => self.programs[id].capture_until = now + self.ms(10, 4000),
            4 => {
                let grown = (self.number(12) * GIB).min(self.free(device));
                if self.devices[device].outsider + grown < OUTSIDER_MOST {
                    self.devices[device].outsider += grown;
                    self.intrude(device, grown);
                }
            }
            5 => self.devices[device].outsider = 0,
            _ => {}
        }
    }
}
