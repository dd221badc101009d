//! Programs that take turns (`--share`), with a test in the arbiter's place: what the agent says and does.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::Ask;
use lowtide_proto::helper::{self, Greeting, Target};
use lowtide_proto::line::{LineReader, at_socket};
use lowtide_proto::share::{Give, Need, Priority, Report, State, ToAgent, ToArbiter, Wait, Way};
use lowtide_types::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::program::{LIMIT, Program, Route, World};
use crate::{MIB, slept};

/// A helper that does what a test says.
struct Helper {
    listener: UnixListener,
}

/// The connection of one program.
struct Member {
    stream: UnixStream,
    lines: LineReader,
    join: helper::Ask,
    /// The last report.
    report: Option<Report>,
}

impl Helper {
    fn new(world: &World) -> Helper {
        let namespace = fs::read_link("/proc/self/ns/pid").expect("a namespace");
        let folder = world.folder().join("run/lowtide");
        // A helper before this one has left it.
        let _made = DirBuilder::new().mode(0o700).create(&folder);
        let path = folder.join(helper::socket_name(&namespace.to_string_lossy()));
        let _removed = fs::remove_file(&path);
        let listener = at_socket(&path, |path| UnixListener::bind(path)).expect("a socket");
        Helper { listener }
    }

    /// Takes the next program in.
    fn joined(&self) -> Member {
        let mut all = [PollFd::new(&self.listener, PollFlags::IN)];
        let limit = Timespec::try_from(LIMIT).expect("a time");
        assert_eq!(poll(&mut all, Some(&limit)), Ok(1), "a program connects");
        let (mut stream, _) = self.listener.accept().expect("a program connects");
        stream.write_all(Greeting::line(std::process::id()).as_bytes()).expect("it reads");
        let mut lines = LineReader::default();
        let line = lines.read(&stream, helper::LINE_MOST, Instant::now() + LIMIT).expect("a line");
        let join = helper::Request::from_line(&line).expect("a question");
        stream.write_all(helper::Answer::Joined.to_line().as_bytes()).expect("it reads");
        Member { stream, lines, join, report: None }
    }
}

impl Member {
    fn say(&mut self, line: &ToAgent) {
        self.stream.write_all(line.to_line().as_bytes()).expect("the agent reads");
    }

    /// Returns what the agent says next that is no report.
    fn hear(&mut self) -> ToArbiter {
        loop {
            match self.read() {
                ToArbiter::Report(report) => self.report = Some(report),
                said => return said,
            }
        }
    }

    fn read(&mut self) -> ToArbiter {
        let deadline = Instant::now() + LIMIT;
        let line = self.lines.read(&self.stream, helper::LINE_MOST, deadline);
        ToArbiter::from_line(&line.expect("the agent says something")).expect("a line of an agent")
    }

    /// Waits for a report of a kind.
    fn report(&mut self, is_meant: impl Fn(&Report) -> bool) -> Report {
        loop {
            match self.read() {
                ToArbiter::Report(report) if is_meant(&report) => return report,
                ToArbiter::Report(_) => {}
                said => panic!("{said:?}"),
            }
        }
    }

    fn need(&mut self) -> Need {
        match self.hear() {
            ToArbiter::Need(need) => need,
            said => panic!("{said:?}"),
        }
    }

    /// Grants the next need, and expects that it is used.
    fn serve(&mut self) -> Need {
        let need = self.need();
        self.grant(need.ticket);
        assert_eq!(self.hear(), ToArbiter::Used { ticket: need.ticket });
        need
    }

    fn grant(&mut self, ticket: u64) {
        self.say(&ToAgent::Grant { ticket, lease_ms: 60_000 });
    }

    fn give(&mut self, way: Way, drain_ms: u64) -> ToArbiter {
        self.say(&ToAgent::Give(Give { way, ..order(drain_ms) }));
        let before = self.report(|report| report.state == State::Draining);
        assert!(!before.devices.is_empty());
        self.hear()
    }
}

fn order(drain_ms: u64) -> Give {
    Give { order: 7, way: Way::Sleep, drain_ms, for_whom: "process 1 (x)".to_owned(), holds: false }
}

/// Settings of a program that takes turns, with a helper that listens already. The machine has 400 MiB, of which a
/// context takes 64.
const SHARED: [(&str, &str); 3] =
    [("LOWTIDE_SHARE", "1"), ("LOWTIDE_HELPER_PROGRAM", "/nowhere/lowtide-helper"), SMALL];
const SMALL: (&str, &str) = ("LOWTIDE_DOUBLE", "total=400MiB");

/// Starts a program that takes turns, and the helper's side of it.
fn shared(world: &World, helper: &Helper, more: &[(&str, &str)]) -> (Program, Member) {
    let program = world.start_with(Route::Dlsym, &[&SHARED[..], more].concat());
    (program, helper.joined())
}

#[test]
fn a_call_that_finds_no_room_asks_for_all_that_its_program_needs_and_is_made_again() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[("LOWTIDE_PRIORITY", "batch")]);
    let helper::Ask::Join(join) = &member.join else { panic!("{:?}", member.join) };
    assert_eq!((join.priority, join.wait_ms), (Priority::Batch, 600_000));
    assert!(join.command.ends_with("client dlsym"), "{}", join.command);
    program.does("alloc 0 67108864; write 0 5");
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does("alloc 0 134217728");
    program.tell("alloc 1 100663296");
    let need = member.need();
    assert_eq!((need.call.as_str(), need.can_leave), ("cuMemAlloc", true));
    // Its context, what it has, and what it wants.
    let [device] = &need.devices[..] else { panic!("{need:?}") };
    assert_eq!(device.bytes, Bytes::mib(64 + 64 + 96));
    let report = member.report.clone().expect("a report comes before a need");
    assert_eq!(report.devices[0].uuid, device.uuid);
    assert_eq!(report.devices[0].resident + report.devices[0].staying, Bytes::mib(128));
    assert!(!program.has_answered());
    // A grant that fails asks again.
    member.grant(need.ticket);
    assert_eq!(member.hear(), ToArbiter::Failed { ticket: need.ticket });
    let again = member.need();
    assert_eq!(again, need);
    other.does("free 0");
    member.grant(need.ticket);
    assert_eq!(program.answer(), "ok");
    assert_eq!(member.hear(), ToArbiter::Used { ticket: need.ticket });
    assert_eq!(member.report.as_ref().expect("a report").devices[0].resident, Bytes::mib(160));
    program.does("write 1 6; check 0; check 1");
}

#[test]
fn a_call_of_unknown_size_asks_for_more_each_time() {
    let world = World::new();
    let helper = Helper::new(&world);
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does(&format!("alloc 0 {}", (400 - 32 - 64 - 70) * MIB));
    let (mut program, mut member) = shared(&world, &helper, &[]);
    // A second context.
    program.tell("second 0");
    for mib in [64, 128] {
        let need = member.need();
        assert_eq!((need.call.as_str(), need.devices[0].bytes), ("cuCtxCreate", Bytes::mib(mib)));
        if mib == 128 {
            other.does("free 0");
        }
        member.grant(need.ticket);
        if mib == 64 {
            assert_eq!(member.hear(), ToArbiter::Failed { ticket: need.ticket });
        }
    }
    assert_eq!(program.answer(), "ok");
    assert!(matches!(member.hear(), ToArbiter::Used { .. }));
}

#[test]
fn a_call_that_is_refused_or_waits_too_long_is_out_of_memory() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[("LOWTIDE_WAIT", "1s")]);
    program.tell("alloc 0 1073741824");
    let need = member.need();
    member.say(&ToAgent::Refuse { ticket: need.ticket, why: "the device has less".to_owned() });
    assert_eq!(program.answer(), "error 2");
    assert!(world.said().contains("the device has less"), "{}", world.said());
    program.tell("alloc 0 1073741824");
    let need = member.need();
    assert_eq!(program.answer(), "error 2");
    assert_eq!(member.hear(), ToArbiter::Drop { ticket: need.ticket });
    program.does("alloc 0 4194304; write 0 3; check 0");
}

#[test]
fn a_program_gives_way_while_its_call_waits_and_wakes_with_the_same_grant() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    program.does("alloc 0 67108864; write 0 5");
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does("alloc 0 134217728");
    program.tell("alloc 1 134217728");
    let need = member.need();
    // It may need less now, so it says again what it needs.
    let ToArbiter::Need(again) = member.give(Way::Sleep, 10_000) else { panic!("a need") };
    assert_eq!((again.ticket, &again.devices), (need.ticket, &need.devices));
    let ToArbiter::Gave { order: 7, freed, .. } = member.hear() else { panic!("it gave way") };
    assert_eq!((freed.len(), freed[0].bytes), (1, Bytes::mib(64)));
    let report = member.report.clone().expect("a report comes before");
    assert_eq!((report.state, report.devices[0].back), (State::Asleep, Bytes::mib(64)));
    assert!(program.status().is_asleep && !program.has_answered());
    other.does("alloc 1 33554432; free 0; free 1");
    member.grant(need.ticket);
    assert_eq!(program.answer(), "ok");
    assert_eq!(member.hear(), ToArbiter::Used { ticket: need.ticket }, "one grant was enough");
    program.does("write 1 6; check 0; check 1");
}

#[test]
fn a_touch_of_a_program_that_gave_way_asks_before_it_wakes() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    for block in 0..4 {
        program.does(&format!("alloc {block} 2097152; write {block} 5"));
    }
    assert!(matches!(member.give(Way::Sleep, 0), ToArbiter::Gave { .. }));
    // Four threads, one question.
    program.tell("storm 4 300");
    let need = member.serve();
    assert_eq!((need.call.as_str(), need.devices[0].bytes), ("wake", Bytes::mib(64 + 8)));
    assert_eq!(program.answer(), "ok");
    let report = member.report.clone().expect("a report");
    assert_eq!((report.state, report.devices[0].resident), (State::Awake, Bytes::mib(8)));
    // What another one took in spite of the grant is asked for again.
    assert!(matches!(member.give(Way::Sleep, 0), ToArbiter::Gave { .. }));
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does(&format!("alloc 0 {}", (400 - 32 - 128 - 4) * MIB));
    program.tell("check 0");
    let need = member.need();
    member.grant(need.ticket);
    assert_eq!(member.hear(), ToArbiter::Failed { ticket: need.ticket });
    assert_eq!(member.need().ticket, need.ticket);
    other.does("free 0");
    member.grant(need.ticket);
    assert_eq!(program.answer(), "ok");
}

#[test]
fn work_ends_before_a_program_gives_way_and_what_comes_later_waits() {
    let world = World::new();
    let helper = Helper::new(&world);
    let slow = ("LOWTIDE_DOUBLE", "total=400MiB,late_us=300000");
    let (mut program, mut member) = shared(&world, &helper, &[slow]);
    program.does("alloc 0 4194304; write 0 5; begin 0");
    let ToArbiter::Refused { reason, .. } = member.give(Way::Sleep, 0) else {
        panic!("it was busy")
    };
    assert!(reason.contains("busy"), "{reason}");
    assert!(!program.status().is_asleep);
    program.does("end; begin 0");
    assert!(matches!(member.give(Way::Sleep, 10_000), ToArbiter::Gave { .. }));
    assert!(program.status().is_asleep);
    program.tell("check 0");
    member.serve();
    assert_eq!(program.answer(), "error -2", "the work was done");
}

#[test]
fn a_process_that_holds_keeps_its_memory_and_its_threads_until_its_family_has_come_so_far() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[("LOWTIDE_FAMILY", "7-8")]);
    let helper::Ask::Join(join) = &member.join else { panic!("{:?}", member.join) };
    assert_eq!(join.family.map(Target::to_text).as_deref(), Some("7-8"));
    program.does("alloc 0 4194304; write 0 5");
    for leaves in [false, true, false] {
        member.say(&ToAgent::Give(Give { holds: true, ..order(1000) }));
        assert_eq!(member.hear(), ToArbiter::Held { order: 7 });
        assert!(!program.status().is_asleep);
        if leaves {
            member.say(&ToAgent::Leave { order: 7 });
            let said = member.hear();
            assert!(matches!(said, ToArbiter::Gave { order: 7, .. }), "{said:?}");
            assert!(program.status().is_asleep);
            program.tell("check 0");
            member.serve();
        } else {
            program.tell("check 0");
            thread::sleep(Duration::from_millis(100));
            assert!(!program.has_answered(), "its threads wait");
            member.say(&ToAgent::Stay { order: 7 });
            let said = member.hear();
            assert!(matches!(said, ToArbiter::Refused { order: 7, .. }), "{said:?}");
        }
        assert_eq!(program.answer(), "ok");
    }
    // Nobody says anything any more.
    member.say(&ToAgent::Give(Give { order: 8, holds: true, ..order(100) }));
    assert_eq!(member.hear(), ToArbiter::Held { order: 8 });
    assert!(matches!(member.hear(), ToArbiter::Refused { order: 8, .. }));
    program.does("check 0");
}

#[test]
fn a_capture_is_not_ended_by_an_order_or_a_look() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    program.does("alloc 0 4194304; capture 0");
    assert!(matches!(member.give(Way::Sleep, 10_000), ToArbiter::Refused { .. }));
    member.say(&ToAgent::Look);
    member.report(|report| report.in_capture);
    // A call inside a capture cannot leave: its program keeps its memory while it waits.
    program.tell("alloc 1 1073741824");
    let need = member.need();
    assert!(!need.can_leave);
    member.say(&ToAgent::Refuse { ticket: need.ticket, why: "nobody can give way now".to_owned() });
    assert_eq!(program.answer(), "error 2");
    program.does("end-capture; replay 0");
    assert!(matches!(member.give(Way::Sleep, 10_000), ToArbiter::Gave { .. }));
}

#[test]
fn a_look_says_whether_the_program_is_idle() {
    let world = World::new();
    let helper = Helper::new(&world);
    let slow = ("LOWTIDE_DOUBLE", "total=400MiB,late_us=1500000");
    let (mut program, mut member) = shared(&world, &helper, &[slow]);
    let becomes_idle = |member: &mut Member| {
        let began = Instant::now();
        while member.report(|_| true).idle_ms.is_none() {
            assert!(began.elapsed() < LIMIT, "it is idle");
            member.say(&ToAgent::Look);
        }
    };
    program.does("alloc 0 4194304; write 0 5");
    member.say(&ToAgent::Look);
    becomes_idle(&mut member);
    program.does("begin 0");
    member.say(&ToAgent::Look);
    member.say(&ToAgent::Give(order(0)));
    // The look is done before the order.
    loop {
        match member.read() {
            ToArbiter::Report(report) if report.state == State::Draining => {
                assert_eq!(report.idle_ms, None, "work is on the device");
            }
            ToArbiter::Report(_) => {}
            ToArbiter::Refused { .. } => break,
            said => panic!("{said:?}"),
        }
    }
    program.does("end");
    member.say(&ToAgent::Look);
    becomes_idle(&mut member);
}

#[test]
fn waits_outlive_the_arbiter_and_are_asked_for_again() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    program.does("alloc 0 4194304; write 0 5");
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does("alloc 0 134217728");
    program.tell("alloc 1 134217728");
    let first = member.need();
    member.say(&ToAgent::Give(order(10)));
    let began = Instant::now();
    while !program.status().is_asleep {
        assert!(began.elapsed() < LIMIT, "it gives way");
    }
    drop(member);
    let mut member = helper.joined();
    let again = member.need();
    assert_eq!((again.ticket, again.devices), (first.ticket, first.devices));
    other.does("free 0");
    member.grant(again.ticket);
    assert_eq!(
        member.hear(),
        ToArbiter::Used { ticket: again.ticket },
        "not what it did for another"
    );
    assert_eq!(program.answer(), "ok");
    program.does("check 0");
}

#[test]
fn without_an_arbiter_a_call_does_as_alone() {
    let world = World::new();
    let more = ("LOWTIDE_WAIT", "300ms");
    let mut program = world.start_with(Route::Dlsym, &[&SHARED[..], &[more]].concat());
    assert_eq!(program.text("alloc 1 1073741824"), "error 2");
    program.does("alloc 0 16777216; write 0 5");
    slept(&program);
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does(&format!("alloc 0 {}", (400 - 32 - 128 - 4) * MIB));
    assert_eq!(program.text("check 0"), "error 2");
    other.does("free 0");
    program.does("check 0");
    assert!(world.said().contains("takes no turns"), "{}", world.said());
}

#[test]
fn who_waits_for_long_is_told_for_whom_and_what_ends_it() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    program.tell("alloc 1 1073741824");
    let ticket = member.need().ticket;
    let (why, command) =
        ("process 77 (vllm) computes".to_owned(), Some("lowtide sleep 77".to_owned()));
    member.say(&ToAgent::Wait(Wait { ticket, why, command, expected_s: None }));
    let began = Instant::now();
    while !world.said().contains("process 77 (vllm) computes; `lowtide sleep 77` ends the wait") {
        assert!(began.elapsed() < LIMIT, "{}", world.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    member.say(&ToAgent::Refuse { ticket, why: "enough".to_owned() });
    assert_eq!(program.answer(), "error 2");
}

#[test]
fn a_program_is_told_one_limit_for_its_life_whatever_its_neighbours_do() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[("LOWTIDE_RESERVE", "20MiB")]);
    program.tell("told");
    let ToArbiter::Fixed(mut device) = member.hear() else { panic!("a question") };
    assert_eq!(device.bytes, Bytes::mib(64), "its context");
    device.bytes = Bytes::mib(48);
    member.say(&ToAgent::Fixed(device));
    // Of the device 368 MiB are for programs.
    let told = |free_mib: u64| format!("{} {}", free_mib * MIB, 368 * MIB);
    assert_eq!(program.answer(), told(368 - 48 - 20 - 64));
    program.does("alloc 0 67108864; write 0 5");
    assert_eq!(program.text("told"), told(172));
    let mut other = world.start_with(Route::Dlsym, &[SMALL]);
    other.does("alloc 0 134217728");
    assert_eq!(program.text("told"), told(172), "the driver has less");
    assert!(matches!(member.give(Way::Sleep, 10_000), ToArbiter::Gave { .. }));
    assert_eq!(program.text("told"), told(172), "asleep");
    program.tell("free 0");
    assert_eq!(program.answer(), "ok");
    assert_eq!(program.text("told"), told(236), "by what it freed");
    let [limit] = &program.status().limits[..] else { panic!("{:?}", program.status()) };
    assert_eq!((limit.life, limit.told_free), (Some(Bytes::mib(300)), Bytes::mib(236)));
}

#[test]
fn without_an_arbiter_the_drivers_numbers_are_told() {
    let world = World::new();
    let mut program = world.start_with(Route::Dlsym, &SHARED);
    assert_eq!(program.text("told"), format!("{} {}", 304 * MIB, 368 * MIB));
}

#[test]
fn a_program_that_was_put_to_sleep_by_hand_asks_too_and_says_so() {
    let world = World::new();
    let helper = Helper::new(&world);
    let (mut program, mut member) = shared(&world, &helper, &[]);
    program.does("alloc 0 4194304; write 0 5");
    slept(&program);
    member.report(|report| report.state == State::Asleep);
    program.tell("check 0");
    member.serve();
    assert_eq!(program.answer(), "ok");
    // A typed wake is the person's own decision.
    slept(&program);
    program.ask(Ask::Wake);
    assert!(!program.status().is_asleep);
}
