//! The arbiter in the helper's process, with real sockets and agents that a test plays.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use lowtide_proto::helper::{Answer, Ask, Connection, DeviceBytes, Helper, LINE_MOST, socket_name};
use lowtide_proto::line::{LineReader, connect};
use lowtide_proto::share::{
    Holding, Join, Need, Priority, Queue, Report, State, ToAgent, ToArbiter, Way,
};
use lowtide_types::Bytes;

use crate::world::{LIMIT, Program, World, ask, kill};

/// An agent that a test plays.
struct Agent {
    stream: UnixStream,
    lines: LineReader,
    report: Report,
}

fn on(world: &World, bytes: Bytes) -> DeviceBytes {
    let Answer::Devices { devices } = ask(&world.helper(), Ask::Devices) else { panic!("no GPU") };
    DeviceBytes { uuid: devices[0].uuid.clone(), bytes }
}

impl Agent {
    /// Joins, and says what it has.
    fn join(world: &World, resident: Bytes) -> Agent {
        let agent = Agent::join_silently(world, resident);
        agent.say(&ToArbiter::Report(agent.report.clone()));
        agent
    }

    fn join_silently(world: &World, resident: Bytes) -> Agent {
        let DeviceBytes { uuid, bytes } = on(world, resident);
        let join = Join {
            command: "tenant".to_owned(),
            priority: Priority::Normal,
            wait_ms: 600_000,
            family: None,
        };
        let connection: Connection = world.helper().connect().expect("it listens");
        let (stream, lines) = connection.join(join).expect("it lets us join");
        let report = Report {
            state: State::Awake,
            devices: vec![Holding { uuid, resident: bytes, back: bytes, ..Holding::default() }],
            idle_ms: Some(1000),
            in_capture: false,
            is_exiting: false,
            unmovable: Vec::new(),
            sleep_ms: 0,
            wake_ms: 0,
        };
        Agent { stream, lines, report }
    }

    fn say(&self, said: &ToArbiter) {
        (&self.stream).write_all(said.to_line().as_bytes()).expect("the helper reads");
    }

    fn need(&self, world: &World, bytes: Bytes) {
        let devices = vec![on(world, bytes)];
        let call = "cuMemAlloc".to_owned();
        self.say(&ToArbiter::Need(Need { ticket: 1, call, devices, can_leave: true }));
    }

    /// Reads the next line.
    fn read(&mut self) -> std::io::Result<ToAgent> {
        let line = self.lines.read(&self.stream, LINE_MOST, Instant::now() + LIMIT)?;
        Ok(ToAgent::from_line(&line).expect("a message"))
    }

    /// Waits for what the arbiter wants, and reports when it looks.
    fn hear(&mut self) -> ToAgent {
        loop {
            match self.read().expect("the helper is there") {
                ToAgent::Look => self.say(&ToArbiter::Report(self.report.clone())),
                said => return said,
            }
        }
    }

    /// Waits for a line that is no word about the wait.
    fn hear_end(&mut self) -> ToAgent {
        loop {
            match self.hear() {
                ToAgent::Wait(_) => {}
                said => return said,
            }
        }
    }

    /// Obeys an order to sleep: the program that has the memory ends.
    fn give_way(&mut self, mut program: Program) {
        let said = self.hear();
        let ToAgent::Give(give) = said else { panic!("no order: {said:?}") };
        assert_eq!(give.way, Way::Sleep);
        assert!(give.for_whom.ends_with("(tenant)"), "{give:?}");
        self.report.state = State::Draining;
        self.say(&ToArbiter::Report(self.report.clone()));
        program.kill_it();
        let holding = &mut self.report.devices[0];
        let (uuid, bytes) = (holding.uuid.clone(), holding.resident);
        (holding.resident, self.report.state) = (Bytes::ZERO, State::Asleep);
        self.say(&ToArbiter::Report(self.report.clone()));
        let freed = vec![DeviceBytes { uuid, bytes }];
        self.say(&ToArbiter::Gave { order: give.order, freed, took_ms: 1 });
    }

    fn has_ended(&mut self) -> bool {
        loop {
            match self.read() {
                Ok(_) => {}
                Err(error) => {
                    let gone = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                    return gone.contains(&error.kind());
                }
            }
        }
    }
}

/// Returns the helper's socket.
fn socket(world: &World) -> PathBuf {
    let namespace = fs::read_link("/proc/thread-self/ns/pid").expect("a namespace");
    world.sockets().join(socket_name(&namespace.to_string_lossy()))
}

fn queue(helper: &Helper) -> Queue {
    match ask(helper, Ask::Queue) {
        Answer::Queue(queue) => queue,
        answer => panic!("no queue: {answer:?}"),
    }
}

#[test]
fn an_idle_program_gives_way_and_a_client_killed_between_grant_and_use_leaves_nothing() {
    let world = World::new();
    let program = world.program(2000);
    let mut holder = Agent::join(&world, Bytes::mib(2000));
    let mut asker = Agent::join(&world, Bytes::ZERO);
    asker.need(&world, Bytes::mib(3000));
    holder.give_way(program);
    assert!(matches!(asker.hear_end(), ToAgent::Grant { ticket: 1, .. }));
    let mut next = Agent::join(&world, Bytes::ZERO);
    next.need(&world, Bytes::mib(3000));
    let waits = loop {
        // It waits behind the lease, which no program can end.
        if let ToAgent::Wait(wait) = next.hear() {
            break wait;
        }
    };
    assert_eq!(waits.ticket, 1);
    let shown = queue(&world.helper());
    assert_eq!(shown.waiters.len(), 2, "{shown:?}");
    assert!(shown.waiters[0].is_granted && !shown.waiters[1].is_granted, "{shown:?}");
    assert_eq!(shown.devices[0].granted, Bytes::mib(3000));
    assert_eq!(shown.holders.iter().filter(|it| it.state.is_some()).count(), 3, "{shown:?}");
    drop(asker);
    assert!(matches!(next.hear_end(), ToAgent::Grant { ticket: 1, .. }));
    next.say(&ToArbiter::Used { ticket: 1 });
    next.need(&world, Bytes::gib(5));
    let refused = next.hear_end();
    assert!(
        matches!(refused, ToAgent::Refuse { ticket: 1, .. }),
        "more than the card: {refused:?}"
    );
}

#[test]
fn a_silent_agent_is_named_and_the_helper_stays_for_it() {
    let world = World::new();
    let program = world.program(2000);
    let pid = world.helper().connect().expect("it listens").pid();
    let mut holder = Agent::join(&world, Bytes::mib(2000));
    let mut asker = Agent::join(&world, Bytes::ZERO);
    asker.need(&world, Bytes::mib(3000));
    // The order has no answer for longer than a helper without clients would stay.
    let this = std::process::id();
    let why = loop {
        if let ToAgent::Wait(wait) = asker.hear()
            && wait.why.contains("has not answered")
        {
            break wait.why;
        }
    };
    assert!(why.contains(&format!("process {this} (tenant)")), "{why}");
    assert!(queue(&world.helper()).holders.iter().any(|it| it.unmovable.is_some()));
    assert_eq!(world.helper().connect().expect("it listens").pid(), pid);
    // It was only slow.
    holder.say(&ToArbiter::Report(holder.report.clone()));
    holder.give_way(program);
    assert!(matches!(asker.hear_end(), ToAgent::Grant { ticket: 1, .. }));
}

#[test]
fn lines_that_do_not_fit_are_refused_in_words_or_end_the_connection() {
    let world = World::new();
    let mut agent = Agent::join(&world, Bytes::ZERO);
    (&agent.stream).write_all(b"{\"say\":\"sing\"}\n").expect("the helper reads");
    assert!(agent.has_ended());
    let mut stream = connect(&socket(&world)).expect("it listens");
    let mut lines = LineReader::default();
    let mut read = || lines.read(&stream, LINE_MOST, Instant::now() + LIMIT).expect("a line");
    assert!(String::from_utf8_lossy(&read()).contains("version"), "it greets");
    let join = "\"ask\":\"join\",\"command\":\"x\",\"priority\":\"normal\",\"wait_ms\":1}\n";
    stream.write_all(format!("{{\"version\":9,{join}").as_bytes()).expect("the helper reads");
    let answer = lines.read(&stream, LINE_MOST, Instant::now() + LIMIT).expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("refused") && answer.contains("version 9"), "{answer}");
}

#[test]
fn a_helper_that_lost_its_place_lets_everybody_go_to_the_next() {
    let world = World::new();
    let mut agent = Agent::join(&world, Bytes::ZERO);
    let pid = world.helper().connect().expect("it listens").pid();
    fs::remove_file(socket(&world)).expect("its socket");
    assert!(agent.has_ended());
    let next = Agent::join(&world, Bytes::ZERO);
    assert_ne!(world.helper().connect().expect("it listens").pid(), pid);
    let shown = queue(&world.helper());
    assert_eq!(shown.holders.iter().filter(|it| it.state.is_some()).count(), 1, "{shown:?}");
    drop(next);
}

#[test]
fn after_a_restart_a_call_is_granted_when_agents_have_reported() {
    let world = World::new();
    let program = world.program(2000);
    let mut holder = Agent::join(&world, Bytes::mib(2000));
    let mut asker = Agent::join(&world, Bytes::ZERO);
    asker.need(&world, Bytes::mib(3000));
    kill(world.helper().connect().expect("it listens").pid());
    assert!(holder.has_ended() && asker.has_ended());
    // An agent that listens and does not share: it is waited for, and not for ever.
    let namespace = fs::read_link("/proc/thread-self/ns/pid").expect("a namespace");
    let name = lowtide_proto::socket_name(&namespace.to_string_lossy(), program.target.pid);
    let _other = File::create(world.sockets().join(name)).expect("a file");
    let mut asker = Agent::join(&world, Bytes::ZERO);
    asker.need(&world, Bytes::mib(3000));
    let mut holder = Agent::join(&world, Bytes::mib(2000));
    // It answers meanwhile: nothing is granted to one that does not.
    let asker = thread::spawn(move || asker.hear_end());
    holder.give_way(program);
    assert!(matches!(asker.join(), Ok(ToAgent::Grant { ticket: 1, .. })));
}
