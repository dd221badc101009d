//! The arbiter's rules, one by one, with a clock of the test's own.

use std::time::Duration;

use lowtide_helper::share::{Arbiter, DeviceFree, Event, LATE, MemberId, RESERVE};
use lowtide_proto::helper::{DeviceBytes, Target};
use lowtide_proto::share::{
    Give, Holding, Join, Need, Priority, Report, State, ToAgent, ToArbiter, Way,
};
use lowtide_types::Bytes;

const CAPACITY: u64 = 100;

/// An arbiter of two devices of 100 GiB, and what is free on them.
struct Table {
    arbiter: Arbiter,
    now: Duration,
    free: [u64; 2],
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A report of a program that has so many GiB on the first device, idle for a second or busy.
fn report(gib: u64, is_idle: bool) -> Report {
    let resident = Bytes::gib(gib);
    let holding = Holding { uuid: "0".to_owned(), resident, back: resident, ..Holding::default() };
    Report {
        state: State::Awake,
        devices: vec![holding],
        idle_ms: is_idle.then_some(1000),
        in_capture: false,
        is_exiting: false,
        unmovable: Vec::new(),
        sleep_ms: 0,
        wake_ms: 0,
    }
}

impl Table {
    /// A table at which programs of these classes sit, the first with this report, the others with nothing.
    fn new(classes: &[Priority], first: &Report, free: [u64; 2]) -> Table {
        let mut table = Table { arbiter: Arbiter::new([]), now: Duration::ZERO, free };
        for (id, priority) in classes.iter().enumerate() {
            let (id, priority) = (id as u64, *priority);
            let target = Target { pid: id as u32, start_ticks: 0 };
            let join = Join { command: "x".to_owned(), priority, wait_ms: 1, family: None };
            table.arbiter.hear(table.now, MemberId(id), Event::Joined { target, join });
            table.say(id, ToArbiter::Report(if id == 0 { first.clone() } else { report(0, true) }));
        }
        table
    }

    fn say(&mut self, id: u64, said: ToArbiter) {
        self.arbiter.hear(self.now, MemberId(id), Event::Said(said));
    }

    fn need(&mut self, id: u64, gib: [u64; 2], can_leave: bool) {
        let on = |(device, gib): (usize, &u64)| DeviceBytes {
            uuid: device.to_string(),
            bytes: Bytes::gib(*gib),
        };
        let devices = gib.iter().enumerate().filter(|(_, gib)| **gib > 0).map(on).collect();
        let need = Need { ticket: id, call: "wake".to_owned(), devices, can_leave };
        self.say(id, ToArbiter::Need(need));
    }

    /// Decides, and returns what was told beside looks.
    fn decide(&mut self) -> Vec<(u64, ToAgent)> {
        let number = |(device, free): (usize, &u64)| DeviceFree {
            uuid: device.to_string(),
            capacity: Bytes::gib(CAPACITY),
            free: Bytes::gib(*free) + RESERVE,
            others: Vec::new(),
        };
        let numbers: Vec<DeviceFree> = self.free.iter().enumerate().map(number).collect();
        let told = self.arbiter.decide(self.now, &numbers);
        let told = told.into_iter().filter(|(_, said)| *said != ToAgent::Look);
        told.map(|(MemberId(id), said)| (id, said)).collect()
    }

    /// Lets time pass, has the first two programs report and decides. Returns the order that is given.
    fn order_after(&mut self, time: Duration, first: &Report) -> Option<Give> {
        self.now += time;
        self.say(0, ToArbiter::Report(first.clone()));
        self.say(1, ToArbiter::Report(report(0, true)));
        self.decide().into_iter().find_map(|(_, said)| match said {
            ToAgent::Give(give) => Some(give),
            _ => None,
        })
    }
}

fn is_granted(told: &[(u64, ToAgent)], to: u64) -> bool {
    told.iter().any(|(id, said)| *id == to && matches!(said, ToAgent::Grant { .. }))
}

fn refusal(told: &[(u64, ToAgent)]) -> Option<&str> {
    told.iter().find_map(|(_, said)| match said {
        ToAgent::Refuse { why, .. } => Some(why.as_str()),
        _ => None,
    })
}

const TWO: &[Priority] = &[Priority::Normal; 2];
const THREE: &[Priority] = &[Priority::Normal; 3];

#[test]
fn more_than_the_card_is_refused_at_once_and_what_cannot_move_after_two_seconds() {
    let mut table = Table::new(TWO, &report(0, true), [100, 100]);
    table.now = seconds(3.0);
    table.need(1, [CAPACITY, 0], true);
    assert!(refusal(&table.decide()).is_some_and(|why| why.contains("for programs")));
    let fixed = Report { unmovable: vec!["managed memory".to_owned()], ..report(40, true) };
    let mut table = Table::new(THREE, &fixed, [59, 95]);
    let mut elsewhere = Report { unmovable: fixed.unmovable.clone(), ..report(5, true) };
    elsewhere.devices[0].uuid = "1".to_owned();
    table.say(2, ToArbiter::Report(elsewhere));
    table.now = seconds(3.0);
    table.need(1, [70, 0], true);
    assert_eq!(refusal(&table.decide()), None, "the numbers may be late");
    table.now += seconds(2.0);
    let told = table.decide();
    let why = refusal(&told).unwrap_or_else(|| panic!("{told:?}"));
    assert!(why.ends_with("cannot be moved: process 0 (x)"), "{why}");
    // One that sleeps can free nothing and try again.
    let asleep = Report { state: State::Asleep, ..report(0, true) };
    table.say(1, ToArbiter::Report(asleep.clone()));
    table.need(1, [70, 0], true);
    table.decide();
    table.now += seconds(9.0);
    table.say(1, ToArbiter::Report(asleep));
    assert_eq!(refusal(&table.decide()), None);
}

#[test]
fn residence_protects_against_the_own_class_and_not_against_a_higher_one() {
    for (asker, waits) in [(Priority::Normal, true), (Priority::Interactive, false)] {
        let busy = Report { sleep_ms: 300, wake_ms: 200, ..report(80, false) };
        let mut table = Table::new(&[Priority::Normal, asker], &busy, [20, 100]);
        table.need(1, [80, 0], true);
        let early = table.order_after(seconds(4.9), &busy);
        assert_eq!(early.is_none(), waits, "{asker}: ten switches are five seconds");
        let order = early.or_else(|| table.order_after(seconds(0.2), &busy)).expect("its turn");
        assert_eq!((order.way, order.drain_ms), (Way::Sleep, 10_000));
    }
}

#[test]
fn failed_drains_come_at_most_a_minute_apart_and_take_a_twentieth_of_the_time_beside_the_first() {
    let busy = report(80, false);
    let mut table = Table::new(TWO, &busy, [20, 100]);
    table.need(1, [80, 0], true);
    let mut failed = seconds(0.0);
    let mut give = table.order_after(seconds(3.0), &busy).expect("its residence is over");
    for pause in [2, 4, 8, 16, 32, 60, 60] {
        let allowed = seconds(10.0) + table.now / 20;
        assert_eq!(give.drain_ms, allowed.saturating_sub(failed).as_millis().min(10_000) as u64);
        failed += Duration::from_millis(give.drain_ms);
        table.now += Duration::from_millis(give.drain_ms);
        let (order, reason) = (give.order, "its work did not end".to_owned());
        table.say(0, ToArbiter::Refused { order, reason, tried_ms: give.drain_ms });
        let told = table.decide();
        let is_named =
            |said: &ToAgent| matches!(said, ToAgent::Wait(it) if it.why.contains("did not end"));
        assert!(told.iter().any(|(_, said)| is_named(said)), "{told:?}");
        assert_eq!(table.order_after(seconds(f64::from(pause) - 0.1), &busy), None);
        give = table.order_after(seconds(0.2), &busy).expect("the pause is over");
    }
}

#[test]
fn a_turn_pays_for_all_that_its_beginning_took_and_whoever_had_less_time_catches_up() {
    let mut table = Table::new(TWO, &report(80, false), [20, 100]);
    table.need(1, [80, 0], true);
    // The second has waited for 20 s when the first gives way.
    table.now = seconds(20.0);
    let Give { order, .. } = table.order_after(seconds(0.0), &report(80, false)).expect("a turn");
    let away = Report { state: State::Asleep, sleep_ms: 100, ..report(0, true) };
    table.say(0, ToArbiter::Report(away));
    table.now += seconds(0.6);
    let freed = vec![DeviceBytes { uuid: "0".to_owned(), bytes: Bytes::gib(80) }];
    table.say(0, ToArbiter::Gave { order, freed, took_ms: 100 });
    table.free = [100, 100];
    assert!(is_granted(&table.decide(), 1));
    table.say(1, ToArbiter::Report(report(80, false)));
    table.say(1, ToArbiter::Used { ticket: 1 });
    table.free = [20, 100];
    // The first waited for nobody: the second has its residence, or as much time as the first had.
    table.need(0, [80, 0], true);
    for (after, is_due) in [(19.8, false), (0.4, true)] {
        table.now += seconds(after);
        table.say(1, ToArbiter::Report(report(80, false)));
        let told = table.decide();
        let gives = told.iter().any(|(_, said)| matches!(said, ToAgent::Give(_)));
        assert_eq!(gives, is_due, "{told:?}");
    }
}

#[test]
fn a_call_that_cannot_leave_waits_only_for_programs_that_can_give_way_now() {
    for (is_idle, waits) in [(true, true), (false, false)] {
        let first = report(80, is_idle);
        let mut table = Table::new(TWO, &first, [20, 100]);
        table.need(1, [80, 0], false);
        table.now = seconds(0.2);
        let told = table.decide();
        assert_eq!(refusal(&told).is_none(), waits, "{told:?}");
    }
}

#[test]
fn a_need_on_two_devices_is_granted_whole_and_a_later_call_takes_what_is_left() {
    let mut table = Table::new(THREE, &report(60, false), [40, 100]);
    table.now = seconds(1.0);
    // Its part of the second device is free, and it does not take it alone.
    table.need(1, [90, 80], true);
    table.now += seconds(0.1);
    table.need(2, [0, 30], true);
    let told = table.decide();
    assert!(!is_granted(&told, 1) && !is_granted(&told, 2), "{told:?}");
    table.need(2, [0, 20], true);
    assert!(is_granted(&table.decide(), 2));
    // The second has its part, the first has ended its work.
    table.say(2, ToArbiter::Used { ticket: 2 });
    table.free = [100, 80];
    table.say(0, ToArbiter::Report(report(0, true)));
    let told = table.decide();
    assert!(is_granted(&told, 1), "{told:?}");
}

#[test]
fn contexts_leave_where_they_are_all_that_is_missing() {
    let mut first = report(80, false);
    first.devices[0].staying = Bytes::gib(1);
    first.devices[0].suspendable = Bytes::gib(1);
    let asleep = {
        let mut report = Report { state: State::Asleep, ..first.clone() };
        report.devices[0].resident = Bytes::ZERO;
        report
    };
    for (first, free, need, way) in [(&first, 19, 24, Way::Sleep), (&asleep, 80, 81, Way::Suspend)]
    {
        let mut table = Table::new(TWO, first, [free, 100]);
        table.need(1, [need, 0], true);
        let order = table.order_after(seconds(3.0), first).expect("it can give way");
        assert_eq!(order.way, way, "{free} GiB free, {need} needed");
    }
}

#[test]
fn what_a_program_took_without_asking_comes_back_though_the_reserve_is_in_it() {
    let asleep = Report { state: State::Asleep, ..report(0, true) };
    let mut table = Table::new(TWO, &asleep, [CAPACITY, CAPACITY]);
    table.now = seconds(3.0);
    table.need(0, [CAPACITY, 0], true);
    assert!(is_granted(&table.decide(), 0));
}

#[test]
fn a_grant_waits_for_an_order_that_is_about_to_end_and_for_no_later_one() {
    let mut table = Table::new(TWO, &report(60, true), [40, 100]);
    table.now = seconds(3.0);
    table.need(1, [70, 0], true);
    table.decide();
    table.say(0, ToArbiter::Report(report(60, true)));
    let told = table.decide();
    assert!(told.iter().any(|(id, said)| *id == 0 && matches!(said, ToAgent::Give(_))), "{told:?}");
    table.free = [75, 100];
    assert!(!is_granted(&table.decide(), 1), "more of it is on its way");
    table.now += seconds(1.0);
    assert!(is_granted(&table.decide(), 1), "it takes long");
}

#[test]
fn a_used_lease_counts_until_the_driver_shows_it() {
    let mut table = Table::new(THREE, &report(0, true), [100, 100]);
    table.now = seconds(3.0);
    table.need(1, [60, 0], true);
    assert!(is_granted(&table.decide(), 1));
    table.say(1, ToArbiter::Report(report(60, false)));
    table.say(1, ToArbiter::Used { ticket: 1 });
    table.need(2, [30, 0], true);
    assert!(is_granted(&table.decide(), 2), "40 GiB are left");
    table.say(2, ToArbiter::Drop { ticket: 2 });
    table.need(2, [60, 0], true);
    let told = table.decide();
    assert!(!is_granted(&told, 2), "the number is an old one: {told:?}");
    // By now the number is of a time after the use: somebody else has ended.
    table.now += LATE;
    table.say(1, ToArbiter::Report(report(60, false)));
    assert!(is_granted(&table.decide(), 2));
}

#[test]
fn a_new_arbiter_grants_nothing_before_the_agents_have_reported_or_two_seconds_have_passed() {
    for reports in [true, false] {
        let mut table = Table::new(&[], &report(0, true), [100, 100]);
        table.arbiter = Arbiter::new([0, 1]);
        for id in [0, 1] {
            let target = Target { pid: id as u32, start_ticks: 0 };
            let join = Join {
                command: "x".to_owned(),
                priority: Priority::Normal,
                wait_ms: 1,
                family: None,
            };
            table.arbiter.hear(table.now, MemberId(id), Event::Joined { target, join });
        }
        table.say(1, ToArbiter::Report(report(0, true)));
        table.need(1, [10, 0], true);
        table.now = seconds(1.9);
        assert!(!is_granted(&table.decide(), 1));
        if reports {
            table.say(0, ToArbiter::Report(report(0, true)));
        } else {
            table.now = seconds(2.0);
        }
        assert!(is_granted(&table.decide(), 1));
    }
}

#[test]
fn a_program_that_is_stopped_is_named_with_the_command_that_continues_it() {
    let mut table = Table::new(TWO, &report(80, true), [20, 100]);
    table.now = seconds(3.0);
    table.arbiter.hear(table.now, MemberId(0), Event::Stopped(true));
    table.need(1, [80, 0], true);
    let told = table.decide();
    let [(1, ToAgent::Wait(wait))] = told.as_slice() else { panic!("{told:?}") };
    assert!(wait.why.contains("process 0 (x) has 81,920.0 MiB and is stopped"), "{wait:?}");
    assert_eq!(wait.command.as_deref(), Some("kill -CONT 0"));
    table.arbiter.hear(table.now, MemberId(0), Event::Stopped(false));
    assert!(table.order_after(seconds(0.1), &report(80, true)).is_some());
}

#[test]
fn a_question_is_answered_with_what_cannot_be_moved_once_the_others_have_reported() {
    let fixed = Report { unmovable: vec!["managed memory".to_owned()], ..report(40, true) };
    let mut table = Table::new(TWO, &fixed, [50, 100]);
    table.now = seconds(3.0);
    let device = |bytes| DeviceBytes { uuid: "0".to_owned(), bytes };
    table.say(1, ToArbiter::Fixed(device(Bytes::gib(1))));
    assert_eq!(table.decide(), []);
    table.say(0, ToArbiter::Report(fixed));
    // What is in use, but for what it has itself; nobody knows whose the rest is.
    let all = Bytes::gib(CAPACITY - 50 - 1).saturating_sub(RESERVE);
    assert_eq!(table.decide(), [(1, ToAgent::Fixed(device(all)))]);
    // What can move is not in it.
    table.say(1, ToArbiter::Fixed(device(Bytes::gib(1))));
    table.say(0, ToArbiter::Report(report(40, false)));
    assert_eq!(table.decide(), [(1, ToAgent::Fixed(device(all.saturating_sub(Bytes::gib(40)))))]);
}

#[test]
fn a_stopped_program_is_granted_nothing_and_holds_up_nobody() {
    let mut table = Table::new(THREE, &report(0, true), [100, 100]);
    table.now = seconds(3.0);
    table.arbiter.hear(table.now, MemberId(1), Event::Stopped(true));
    table.need(1, [80, 0], true);
    table.need(2, [80, 0], true);
    let told = table.decide();
    assert!(is_granted(&told, 2) && !is_granted(&told, 1), "{told:?}");
}

#[test]
fn no_room_is_kept_for_a_program_that_was_off_the_device_before_its_suspend_failed() {
    let mut asleep = Report { state: State::Asleep, ..report(0, true) };
    let part = Bytes::gib(1);
    let off =
        Holding { staying: part, suspendable: part, back: Bytes::gib(60), ..Holding::default() };
    asleep.devices = vec![Holding { uuid: "0".to_owned(), ..off }];
    let mut table = Table::new(TWO, &asleep, [80, 100]);
    table.need(1, [81, 0], true);
    let Give { order, .. } = table.order_after(seconds(3.0), &asleep).expect("its context leaves");
    table.say(0, ToArbiter::Refused { order, reason: "it cannot".to_owned(), tried_ms: 0 });
    table.say(1, ToArbiter::Drop { ticket: 1 });
    table.need(1, [70, 0], true);
    table.say(0, ToArbiter::Report(asleep));
    assert!(is_granted(&table.decide(), 1));
}
