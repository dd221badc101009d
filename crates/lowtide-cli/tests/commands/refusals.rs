//! What is refused: every command that has `--json` prints JSON then, too.

use serde_json::Value;

use crate::program::Machine;

/// Command lines that end badly on a machine without a GPU: those that are wrong, and those that cannot be done.
const BAD: [&str; 21] = [
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
    let machine = Machine::without_gpu();
    for line in BAD {
        let words: Vec<&str> = line.split(' ').collect();
        let finished = machine.run(&words);
        let printed: Value = serde_json::from_str(&finished.out())
            .unwrap_or_else(|why| panic!("{line}: {why}: {:?} {}", finished.out(), finished.err()));
        assert_ne!(finished.code(), 0, "{line}");
        assert_eq!(printed["answer"], "refused", "{line}: {printed}");
        let why = &printed["reason"];
        assert!(
            why.as_str().is_some_and(|it| it.len() > 10) || printed["refusal"].is_object(),
            "{line}: {printed}"
        );
        assert!(!finished.err().is_empty(), "{line}: people are told, too");
    }
}

#[test]
fn no_command_that_has_json_is_forgotten() {
    let machine = Machine::without_gpu();
    let help = machine.run(&["--help"]).out();
    let listed = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands: Vec<&str> =
        listed.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    assert!(commands.contains(&"doctor"), "{help}");
    for command in commands {
        let has_json = machine.run(&[command, "--help"]).out().contains("--json");
        let tried = BAD.iter().filter(|line| line.split(' ').next() == Some(command)).count();
        assert_eq!(has_json, tried > 1, "{command}");
    }
}

#[test]
fn what_run_starts_has_options_of_its_own() {
    let machine = Machine::without_gpu();
    let finished = machine.run(&["run", "no such program", "--json"]);
    assert_eq!((finished.code(), finished.out().as_str()), (3, ""));
}

#[test]
fn host_memory_has_two_names() {
    let machine = Machine::without_gpu();
    for name in ["host", "cpu"] {
        let report = machine.run(&["doctor", "--json", "--device", name]).json();
        assert_eq!(report["devices"][0]["id"], "host");
    }
}

#[test]
fn a_size_has_a_unit() {
    let machine = Machine::without_gpu();
    for line in ["release 1 --to 512", "replay /nowhere --memory 1.5"] {
        let finished = machine.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(finished.code(), 2, "{line}");
        assert!(finished.err().contains("has no unit; write "), "{}", finished.err());
    }
    assert_eq!(machine.run(&["release", "1", "--to", "0"]).code(), 3, "zero needs none");
}
