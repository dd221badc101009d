//! What is refused: every command that has `--json` prints JSON then, too.

use std::process::{Command, Output};

use serde_json::Value;

use crate::agents::program::World;
use crate::program::one_line;
use crate::suspend::{self, Idle};

/// Runs a command line without a driver, in a world of its own.
fn run(world: &World, line: &str) -> Output {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = suspend::command(world, &words);
    for library in ["LOWTIDE_CUDA_LIBRARY", "LOWTIDE_NVML_LIBRARY"] {
        command.env(library, "/nowhere/library.so");
    }
    command.output().expect("lowtide runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    one_line(&String::from_utf8_lossy(&output.stderr))
}

/// Command lines that end badly on a machine without a GPU: those that are wrong, and those that cannot be done.
const BAD: &[&str] = &[
    "doctor --json --device cuda:0",
    "doctor --json --device 9",
    "doctor --json --measured",
    "ps --json --device xpu:0",
    "ps --json --watch soon",
    "status --json 1",
    "status --json soon",
    "sleep 1 --json",
    "sleep --json",
    "wake 1 --json",
    "wake 1 2 --json",
    "release 1 --json --to 2GiB",
    "release 1 --json --to 512",
    "why one --json",
    "why 999999999 --json",
    "top --json",
    "top --once --json --every soon",
    "suspend 1 --json",
    "suspend 1 --json --lock-timeout 5",
    "resume 999999999 --json",
    "resume one --json",
    "demo --json --device cuda:0",
    "demo --json --hold soon",
    "replay /nowhere --json",
    "replay /nowhere --json --memory 512",
];

#[test]
fn every_command_prints_json_also_where_it_refuses() {
    let world = World::new();
    for line in BAD {
        let done = run(&world, line);
        let printed: Value = serde_json::from_str(&out(&done))
            .unwrap_or_else(|why| panic!("{line}: {why}: {:?} {}", out(&done), err(&done)));
        assert!(!done.status.success(), "{line}");
        assert_eq!(printed["answer"], "refused", "{line}: {printed}");
        let has_reason = printed["reason"].as_str().is_some_and(|reason| reason.len() > 10);
        assert!(has_reason || printed["refusal"].is_object(), "{line}: {printed}");
        assert!(!done.stderr.is_empty(), "{line}: people are told, too");
    }
    let none: Value = serde_json::from_str(&out(&run(&world, "status --json"))).expect("JSON");
    assert!(none["reason"].as_str().is_some_and(|why| why.contains("lowtide run")), "{none}");
}

#[test]
fn no_command_that_has_json_is_forgotten() {
    let world = World::new();
    let help = out(&run(&world, "--help"));
    let listed = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands: Vec<&str> =
        listed.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    assert!(commands.contains(&"doctor"), "{help}");
    for command in commands {
        let help = out(&run(&world, &format!("{command} --help")));
        let has_json = help.lines().any(|line| line.trim_start().starts_with("--json"));
        let tried = BAD.iter().filter(|line| line.split(' ').next() == Some(command)).count();
        assert_eq!(has_json, tried > 1, "{command}");
    }
}

#[test]
fn what_run_starts_has_options_of_its_own() {
    let world = World::new();
    let done = run(&world, "run --without-agent-if-broken /no/such/program --json");
    assert_eq!((done.status.code(), out(&done)), (Some(3), String::new()));
}

#[test]
fn host_memory_has_two_names() {
    let world = World::new();
    for name in ["host", "cpu"] {
        let report = out(&run(&world, &format!("doctor --json --device {name}")));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["devices"][0]["id"], "host");
    }
}

#[test]
fn a_size_has_a_unit_unless_it_is_zero() {
    let world = World::new();
    for line in ["release 1 --to 512", "replay /nowhere --memory 1.5"] {
        let done = run(&world, line);
        assert_eq!(done.status.code(), Some(2), "{line}");
        assert!(err(&done).contains("has no unit; write "), "{}", err(&done));
    }
    assert_eq!(run(&world, "release 1 --to 0").status.code(), Some(3));
}

#[test]
fn suspend_names_the_missing_driver_first() {
    let world = World::new();
    let idle = Idle(Command::new("sleep").arg("600").spawn().expect("sleep runs"));
    let said = err(&run(&world, &format!("suspend {}", idle.0.id())));
    let driver = "lowtide: the helper cannot use the driver: no GPU can be used: the CUDA driver";
    assert!(said.starts_with(driver), "{said}");
}
