//! `why PID`: whom it refuses, and what it shows where nobody answers. What Python programs answer is tried by the
//! tests of the package, which have one.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::agents::program::{Route, World};
use crate::program::Machine;

/// A folder that looks like the package.
fn package(machine: &Machine) -> String {
    let folder = machine.path("lowtide");
    fs::create_dir_all(folder.join("_outside")).unwrap();
    for name in ["_native.abi3.so", "_outside/answer.py"] {
        fs::write(folder.join(name), "").unwrap();
    }
    folder.display().to_string()
}

fn why(machine: &Machine, arguments: &[&str]) -> (i32, String) {
    let mut command = machine.command(crate::PROGRAM, &[&["why"], arguments].concat());
    command.env("LOWTIDE_PACKAGE", package(machine)).env("XDG_RUNTIME_DIR", machine.path(""));
    let output = command.env("COLUMNS", "400").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// A program that waits for its end.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid()]).status().unwrap().success());
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn whoever_cannot_answer_is_refused_by_name() {
    let machine = Machine::without_gpu();
    let mut sleeper = Sleeper::start();
    sleeper.signal("-STOP");
    let state = || fs::read_to_string(format!("/proc/{}/stat", sleeper.pid())).unwrap();
    while !state().contains(") T ") {}
    let (code, text) = why(&machine, &[&sleeper.pid()]);
    assert!(code == 3 && text.contains("stopped") && text.contains("kill -CONT"), "{text}");
    sleeper.signal("-CONT");
    sleeper.signal("-KILL");
    while !state().contains(") Z ") {}
    let (code, text) = why(&machine, &[&sleeper.pid()]);
    assert!(code == 3 && text.contains("has ended"), "{text}");
    let pid = sleeper.pid();
    sleeper.0.wait().unwrap();
    let (code, text) = why(&machine, &[&pid]);
    assert!(code == 3 && text.contains("there is no process"), "{text}");
}

#[test]
fn a_process_without_python_is_shown_by_its_ledger() {
    let machine = Machine::without_gpu();
    let sleeper = Sleeper::start();
    let (code, text) = why(&machine, &[&sleeper.pid(), "--json"]);
    let (json, said) = text.split_once("lowtide: ").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!((code, json["answer"].as_str()), (1, Some("ledger")), "{said}");
    assert!(json["reason"].as_str().unwrap().contains("no Python"), "{json}");

    let world = World::new();
    let mut program = world.start(Route::Dlsym);
    program.does("alloc 0 8388608; write 0 5");
    let mut command = world.command(crate::PROGRAM.as_ref());
    command.args(["why", &program.pid()]).env("LOWTIDE_PACKAGE", package(&machine));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let title = format!("process {}", program.pid());
    assert!(text.contains("ledger") && text.starts_with(&title), "{text}");
    program.does("check 0");
}

#[test]
fn what_belongs_together_has_to_be_given_together() {
    let machine = Machine::without_gpu();
    for (arguments, part) in [
        (&["1", "--cut", "1"][..], "--of"),
        (&["1", "--cut", "0", "--of", "a"], "number of a cut"),
        (&["1", "--limit", "5"], "time"),
        (&["x"], "not the number of a process"),
    ] {
        let (code, text) = why(&machine, arguments);
        assert!(code == 2 && text.contains(part), "{arguments:?}: {text}");
    }
    let mut command = machine.command(crate::PROGRAM, &["why", "1"]);
    let output = command.env("LOWTIDE_PACKAGE", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}
