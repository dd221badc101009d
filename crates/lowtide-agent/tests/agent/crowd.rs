//! Programs that together need more than the device has, with the helper that decides: they take turns, and every byte
//! of every program is checked.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_proto::helper::{Answer, Ask, Helper};
use lowtide_testing::{Dice, is_long_run};

use crate::MIB;
use crate::program::{LIMIT, Program, Route, World, agent, helper};

/// The machine: it has 98 MiB for programs, of which the helper grants 86.
const MACHINE: &str = "total=100MiB,reserved=2MiB,context=1MiB";

/// A machine on which programs take turns.
pub(crate) struct Crowd {
    pub(crate) world: World,
    helper: String,
    settings: String,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        let world = World::new();
        let settings = format!("idle_ms=3000,locks={}", world.folder().display());
        Crowd { world, helper: helper().to_str().expect("a path of letters").to_owned(), settings }
    }

    pub(crate) fn variables(&self) -> [(&str, &str); 5] {
        [
            ("LOWTIDE_SHARE", "1"),
            ("LOWTIDE_WAIT", "5m"),
            ("LOWTIDE_DOUBLE", MACHINE),
            ("LOWTIDE_HELPER_PROGRAM", &self.helper),
            ("LOWTIDE_HELPER", &self.settings),
        ]
    }

    /// Starts a program that has so many MiB in its block 0.
    pub(crate) fn start(&self, mib: u64) -> Program {
        let mut program = self.world.start_with(Route::Dlsym, &self.variables());
        program.does(&format!("alloc 0 {}; write 0 {mib}", mib * MIB));
        program
    }

    fn python(&self) -> Option<Program> {
        if Command::new("python3").arg("--version").output().is_err() {
            println!("skipped: there is no python3");
            return None;
        }
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/client.py");
        let mut command = self.world.command(Path::new("python3"));
        command.arg(client).env("LD_PRELOAD", agent()).envs(self.variables());
        let mut program = self.world.spawn(&mut command);
        program.does("start");
        Some(program)
    }

    /// Kills the helper, if it runs.
    fn kill_helper(&self) {
        let folder = self.world.folder().join("run/lowtide");
        for entry in fs::read_dir("/proc").expect("processes").flatten() {
            let arguments = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = arguments.split('\0');
            let is_helper = words.next().is_some_and(|word| word.ends_with("lowtide-helper"));
            if is_helper && words.next() == folder.to_str() {
                let pid = entry.file_name().to_string_lossy().into_owned();
                signal("-KILL", &pid);
            }
        }
    }

    /// Waits until the queue says something about a call that waits.
    fn queue_says(&self, text: &str) {
        let helper = Helper::new(&self.world.folder().join("run/lowtide"), helper());
        let began = Instant::now();
        loop {
            let mut connection = helper.connect().expect("it listens");
            let Ok(Answer::Queue(queue)) = connection.ask(Ask::Queue) else { panic!("no queue") };
            if queue.waiters.iter().any(|waiter| waiter.why.contains(text)) {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{text}: {queue:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn waits_for(&self, text: &str) {
        let began = Instant::now();
        while !self.world.said().contains(text) {
            assert!(began.elapsed() < LIMIT, "{text}: {}", self.world.said());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn signal(name: &str, pid: &str) {
    let sent = Command::new("kill").args([name, pid]).status().expect("kill");
    assert!(sent.success(), "{name} {pid}");
}

#[test]
fn two_programs_that_do_not_fit_take_turns() {
    let crowd = Crowd::new();
    let mut programs = [crowd.start(52), crowd.start(50)];
    for turn in 0..4 {
        for program in &mut programs {
            program.does(&format!("check 0; write 0 {turn}; check 0"));
        }
    }
    assert_eq!(programs[0].text("alloc 1 1073741824"), "error 2", "more than the device has");
    programs[0].does("check 0");
}

#[test]
fn two_that_both_wait_for_more_while_they_hold_memory_are_both_served() {
    let crowd = Crowd::new();
    let mut programs = [crowd.start(30), crowd.start(30)];
    for program in &mut programs {
        program.tell(&format!("alloc 1 {}", 30 * MIB));
    }
    for program in &mut programs {
        assert_eq!(program.answer(), "ok");
        program.does("write 1 7; check 0; check 1");
    }
    for program in &mut programs {
        program.does("check 0; check 1");
    }
}

#[test]
fn a_thread_that_waits_may_hold_the_interpreters_lock_or_that_of_torchs_allocator() {
    for alloc in ["alloc-locked", "alloc-holding"] {
        let crowd = Crowd::new();
        let Some(mut python) = crowd.python() else { return };
        python.does(&format!("torch locking yes; alloc 0 {}", 30 * MIB));
        let mut other = crowd.start(30);
        python.tell(&format!("{alloc} 1 {}", 30 * MIB));
        other.does(&format!("alloc 1 {}; write 1 7; check 0; check 1", 30 * MIB));
        assert_eq!(python.answer(), "ok", "{alloc}");
        python.does("check 0; check 1");
        other.does("check 0; check 1");
    }
}

#[test]
fn a_callback_on_the_device_may_need_a_lock_that_a_thread_which_waits_holds() {
    let crowd = Crowd::new();
    let Some(mut python) = crowd.python() else { return };
    python.does(&format!("torch locking yes; alloc 0 {}", 30 * MIB));
    let mut other = crowd.start(40);
    signal("-STOP", &other.pid());
    python.does(&format!("later alloc-holding 1 {}", 30 * MIB));
    crowd.waits_for(&other.pid());
    python.does("callback");
    // Its work cannot end, so it cannot give way to this one.
    let mut third = crowd.world.start_with(Route::Dlsym, &crowd.variables());
    third.tell(&format!("alloc 0 {}", 40 * MIB));
    crowd.queue_says("work is running");
    signal("-CONT", &other.pid());
    python.does("joined; check 0; check 1");
    assert_eq!(third.answer(), "ok");
    third.does("write 0 3; check 0");
    other.does("check 0");
}

#[test]
fn a_server_answers_health_checks_while_its_worker_waits_for_a_program_that_is_stopped() {
    let crowd = Crowd::new();
    let Some(mut python) = crowd.python() else { return };
    let socket = crowd.world.folder().join("health");
    python.does(&format!("serve {}; alloc 0 {}", socket.display(), 52 * MIB));
    // The program gives way to this one.
    let mut other = crowd.start(50);
    signal("-STOP", &other.pid());
    python.does("later check 0");
    for _ in 0..3 {
        let mut client = UnixStream::connect(&socket).expect("it listens");
        client.set_read_timeout(Some(LIMIT)).expect("a limit");
        client.write_all(b"GET /health HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it answers");
        assert!(answer.contains(" 200 "), "{answer}");
    }
    // Who is stopped is named.
    crowd.waits_for(&other.pid());
    signal("-CONT", &other.pid());
    python.does("joined; check 0");
    other.does("check 0");
}

#[test]
fn a_thread_that_waits_may_hold_the_loaders_lock() {
    let crowd = Crowd::new();
    let (mut first, mut second) = (crowd.start(52), crowd.start(52));
    let plugin = crowd.world.plugin("touches.so");
    // It gave way to the second.
    first.does(&format!("load {}", plugin.display()));
    second.does("check 0");
    first.does("check 0");
}

/// Kills programs and the helper at random, for ten thousand requests. In a long run only.
#[test]
fn six_programs_that_do_not_fit_keep_their_bytes_whatever_is_killed() {
    if !is_long_run() {
        println!("skipped: LOWTIDE_LONG=1 runs it");
        return;
    }
    let seed = std::env::var("LOWTIDE_SEED").ok().and_then(|seed| seed.parse().ok());
    let (requests, seed) = (10_000, seed.unwrap_or_else(|| u64::from(std::process::id())));
    println!("LOWTIDE_SEED={seed}");
    let (crowd, mut dice) = (Crowd::new(), Dice::new(seed));
    let sizes = [10, 20, 30, 40, 50, 60];
    let mut programs: Vec<_> = sizes.iter().map(|mib| Some(crowd.start(*mib))).collect();
    let mut served = 0;
    while served < requests {
        // Some ask at the same time.
        let mut asked: Vec<usize> = (0..sizes.len()).filter(|_| dice.one_in(3)).collect();
        for number in &asked {
            programs[*number].as_mut().expect("it runs").tell("check 0");
        }
        // At any moment of a turn.
        thread::sleep(Duration::from_millis(dice.roll(40)));
        match dice.roll(12) {
            0 => crowd.kill_helper(),
            1 => {
                let number = dice.index(sizes.len());
                asked.retain(|one| *one != number);
                programs[number].take().expect("it runs").kill();
                programs[number] = Some(crowd.start(sizes[number]));
            }
            _ => {}
        }
        for number in asked {
            let program = programs[number].as_mut().expect("it runs");
            assert_eq!(program.answer(), "ok", "program {number}, request {served}");
            program.does(&format!("write 0 {served}; check 0"));
            served += 1;
            if served % 100 == 0 {
                println!("{served} requests are right");
            }
        }
    }
    programs.iter_mut().flatten().for_each(|program| program.does("check 0"));
}
