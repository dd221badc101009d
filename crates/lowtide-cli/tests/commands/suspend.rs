//! `suspend` and `resume`, on a program without an agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use lowtide_proto::helper::Helper;
use lowtide_testing::double::Double;
use serde_json::Value;

use crate::agents::program::{LIMIT, Program, Route, World, client};

/// Finds the helper beside the `lowtide` program.
pub(crate) fn helper() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_lowtide")).with_file_name("lowtide-helper");
    assert!(
        program.is_file(),
        "{} is missing: run `cargo build -p lowtide-helper`",
        program.display()
    );
    program
}

pub(crate) fn lowtide(world: &World, arguments: &[&str]) -> (i32, String) {
    ended(&mut command(world, arguments))
}

/// Returns a command of the program on a test's machine.
pub(crate) fn command(world: &World, arguments: &[&str]) -> Command {
    let locks = world.folder().join("locks");
    fs::create_dir_all(&locks).expect("a folder");
    let mut command = world.command(env!("CARGO_BIN_EXE_lowtide").as_ref());
    command
        .args(arguments)
        .env("LOWTIDE_CUDA_LIBRARY", Double::path())
        .env("LOWTIDE_HELPER", format!("idle_ms=500,locks={}", locks.display()))
        .env("LOWTIDE_HELPER_PROGRAM", helper())
        .env("COLUMNS", "200")
        .stdin(Stdio::null());
    command
}

/// Waits for a command. Returns its code and what it printed.
pub(crate) fn ended(command: &mut Command) -> (i32, String) {
    let output = command.output().expect("lowtide runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().expect("it was not killed"), text)
}

/// Starts a program on the double, without the agent.
fn program(world: &World) -> Program {
    let mut program = world.spawn(world.command(client(Route::Dlsym)).arg("dlsym"));
    program.does("start; alloc 0 8388608; write 0 5");
    program
}

#[test]
fn a_program_without_an_agent_is_suspended_shown_and_resumed() {
    let world = World::new();
    let mut program = program(&world);
    let pid = program.pid();
    let (code, text) = lowtide(&world, &["suspend", &pid]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("released, off the device in") && text.contains("checkpoint"), "{text}");
    assert!(
        text.contains("72.0 MiB → 0.0 MiB by the process, 72.0 MiB → 0.0 MiB by all"),
        "{text}"
    );
    assert!(text.contains("to come back: 136.0 MiB must be free"), "{text}");
    let (code, text) = lowtide(&world, &["ps"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("suspended") && text.contains("136.0 MiB") && text.contains(&pid),
        "{text}"
    );
    let (code, text) = lowtide(&world, &["ps", "--json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(code, 0);
    assert_eq!(list["suspended"][0]["pid"].to_string(), pid);
    assert_eq!(list["suspended"][0]["needs"][0]["bytes"], 136 << 20);
    let (code, text) = lowtide(&world, &["status"]);
    assert!(code == 0 && text.contains("needs 136.0 MiB on GPU-"), "{text}");
    let (code, text) = lowtide(&world, &["suspend", &pid]);
    assert!(code == 0 && text.contains("was suspended already"), "{text}");
    let (code, text) = lowtide(&world, &["why", &pid]);
    assert!(code == 3 && text.contains("is suspended") && text.contains("resume"), "{text}");
    let (code, text) = lowtide(&world, &["resume", &pid]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("runs, back on the device in") && text.contains("restore"), "{text}");
    program.does("check 0");
    let (code, text) = lowtide(&world, &["resume", &pid, "--json"]);
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &answer["was_running"]), (0, &Value::Bool(true)));
    assert!(!lowtide(&world, &["ps"]).1.contains("suspended"));
    // What was so already is not counted.
    let text = lowtide(&world, &["metrics"]).1;
    for act in ["suspend", "resume"] {
        assert!(text.contains(&format!("lowtide_{act}_duration_seconds_count 1\n")), "{text}");
    }
}

#[test]
fn a_helper_that_is_stopped_is_named_and_waited_for_by_nobody_who_looks() {
    let world = World::new();
    let mut program = program(&world);
    assert_eq!(lowtide(&world, &["suspend", &program.pid()]).0, 0);
    let running = Helper::new(&world.folder().join("run/lowtide"), helper()).running();
    let pid = running.expect("an answer").expect("it has somebody to bring back").pid();
    let kill = |signal: &str| Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(kill("-STOP").expect("kill").success());
    while !lowtide_helper::is_stopped(pid) {
        std::thread::yield_now();
    }
    let said = format!("the helper (process {pid}) is stopped; `kill -CONT {pid}` lets it go on");
    for look in [&["top", "--once"][..], &["status"]] {
        let (code, text) = lowtide(&world, look);
        assert!(code == 0 && text.contains(&said) && text.contains(&program.pid()), "{text}");
    }
    let text = lowtide(&world, &["metrics"]).1;
    assert!(text.contains("\nlowtide_problems 1\n"), "{text}");
    assert!(kill("-CONT").expect("kill").success());
    assert_eq!(lowtide(&world, &["resume", &program.pid()]).0, 0);
    program.does("check 0");
}

#[test]
fn a_process_that_cannot_be_suspended_is_refused_with_the_reason_and_code_3() {
    let world = World::new();
    let mut idle = Idle(Command::new("sleep").arg("600").spawn().expect("sleep runs"));
    let pid = idle.0.id().to_string();
    let (code, text) = lowtide(&world, &["suspend", &pid]);
    assert!(code == 3 && text.contains("has nothing on a device"), "{code}: {text}");
    idle.end();
    let (code, text) = lowtide(&world, &["suspend", &pid]);
    assert!(code == 3 && text.contains(&format!("there is no process {pid}")), "{code}: {text}");
    assert!(!text.contains("os error"), "one reason is enough: {text}");
    assert_eq!(lowtide(&world, &["suspend", "soon"]).0, 2);
}

#[test]
fn a_program_without_room_stays_suspended_and_the_holder_is_named() {
    let world = World::new();
    let mut program = program(&world);
    let pid = program.pid();
    assert_eq!(lowtide(&world, &["suspend", &pid]).0, 0);
    let mut other = self::program(&world);
    // The device has 4 GiB less 32 MiB: all but 100 MiB go to the other program.
    let bytes: u64 = (4096 - 32 - 72 - 100) << 20;
    other.does(&format!("alloc 1 {bytes}"));
    let (code, text) = lowtide(&world, &["resume", &pid, "--wait", "50ms"]);
    assert!(code == 1 && text.contains("136.0 MiB needed, 100.0 MiB free"), "{code}: {text}");
    assert!(text.contains(&format!("pid {}", other.pid())), "{text}");
    other.does("free 1");
    let (code, text) = lowtide(&world, &["resume", &pid]);
    assert_eq!(code, 0, "{text}");
    program.does("check 0");
}

#[test]
fn an_interrupted_suspend_goes_on_and_that_is_said() {
    let world = World::new();
    let program = program(&world);
    let pid = program.pid();
    // So long that it is under way until the program ends.
    let mut suspend = command(&world, &["suspend", &pid]);
    suspend.env("LOWTIDE_DOUBLE", "checkpoint_us=600000000").stderr(Stdio::piped());
    let asked = suspend.stdout(Stdio::null()).spawn().expect("lowtide runs");
    let began = Instant::now();
    while !lowtide(&world, &["status"]).1.contains("on its way (checkpoint)") {
        assert!(began.elapsed() < LIMIT, "it is not on its way");
    }
    let sent = Command::new("kill").args(["-INT", &asked.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let output = asked.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("goes on without this command"), "{text}");
    let (_, text) = lowtide(&world, &["status"]);
    assert!(text.contains("on its way (checkpoint)"), "{text}");
    // Its program ends, and with it the checkpoint.
    drop(program);
}

#[test]
fn doctor_tries_it_on_a_disposable_process_and_leaves_nothing_behind() {
    let world = World::new();
    let suspend = |world: &World| {
        let (code, text) = lowtide(world, &["doctor", "--device", "cuda:0", "--json"]);
        let report: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code}: {text}"));
        report["devices"][0]["capabilities"]["suspend"].clone()
    };
    let found = suspend(&world);
    let detail = found["detail"].as_str().unwrap_or_default();
    assert_eq!(found["works"], true, "{found}");
    assert!(detail.contains("came back in"), "{detail}");
    let left = fs::read_dir(world.folder().join("run/lowtide")).expect("a folder");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("trial")), "{left:?}");
}

/// A process that does nothing; it is killed at the end.
pub(crate) struct Idle(pub(crate) Child);

impl Idle {
    fn end(&mut self) {
        self.0.kill().expect("a child of ours");
        let began = Instant::now();
        while self.0.try_wait().expect("a child of ours").is_none() {
            assert!(began.elapsed() < LIMIT, "it does not end");
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
