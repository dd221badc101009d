//! `lowtide top`, as a user meets it: in a terminal, without one, and on a machine with programs.

use std::process::Command;

use serde_json::Value;

use crate::agents::program::World;
use crate::agents::{lowtide, run};
use crate::program::Machine;

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let finished = Machine::without_gpu().run(&["top"]);
    assert_eq!(finished.code(), 3);
    assert!(finished.err().contains("lowtide ps"), "{}", finished.err());
    for wrong in ["never", "0", "70000"] {
        let finished = Machine::without_gpu().run(&["top", "--once", wrong]);
        assert_eq!(finished.code(), 2);
        assert!(finished.err().contains("number of looks from 1"), "{}", finished.err());
    }
}

#[test]
fn the_bands_are_those_of_the_programs_and_add_up() {
    let world = World::new();
    let (mut awake, mut asleep) = (run(&world, &[]), run(&world, &[]));
    awake.does("start; alloc 0 8388608; write 0 5");
    asleep.does("start; alloc 0 4194304; write 0 6");
    assert!(lowtide(&world, &["sleep", &asleep.pid()]).output().unwrap().status.success());
    let output = lowtide(&world, &["top", "--once", "--json"]).output().unwrap();
    let look: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let device = &look["devices"][0];
    let bytes = |of: &Value, key: &str| of[key].as_i64().unwrap();
    let bands = device["bands"].as_object().unwrap();
    let sum: i64 = bands.values().map(|band| band.as_i64().unwrap()).sum();
    assert_eq!(sum, bytes(device, "total_bytes") - bytes(device, "free_bytes"));
    assert_eq!((bytes(&device["bands"], "live"), bytes(&device["bands"], "unknown")), (8 << 20, 0));
    let program = |pid: &str| {
        let mut all = look["programs"].as_array().unwrap().iter();
        all.find(|program| program["pid"] == pid.parse::<u32>().unwrap()).unwrap().clone()
    };
    let (awake, asleep) = (program(&awake.pid()), program(&asleep.pid()));
    assert_eq!((&awake["state"], bytes(&awake, "sleep_frees_bytes")), (&"awake".into(), 8 << 20));
    assert_eq!((&asleep["state"], bytes(&asleep, "sleep_frees_bytes")), (&"asleep".into(), 0));
    let picture = lowtide(&world, &["top", "--once"]).env("COLUMNS", "80").output().unwrap();
    let text = String::from_utf8(picture.stdout).unwrap();
    assert!(text.contains("1 awake, 1 asleep") && text.contains("cuda:0 GPU-"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// Runs `top` in a terminal. The script says what is to come of it.
fn in_terminal(world: &World, what: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/top_in_terminal.py");
    let mut command = lowtide(world, &[]);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    let mut typed = Command::new("python3");
    typed.arg(script).arg(what).arg(crate::PROGRAM).args(["top", "--every", "0.1"]);
    for (name, value) in command.get_envs() {
        typed.env(name, value.unwrap_or_default());
    }
    let output = typed.output().unwrap();
    let drawn = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{drawn}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn in_a_terminal_a_key_asks_for_the_pid_and_puts_that_program_to_sleep() {
    let world = World::new();
    let mut program = run(&world, &[]);
    program.does("start; alloc 0 8388608; write 0 5");
    in_terminal(&world, &program.pid());
    assert!(program.status().is_asleep);
    program.does("check 0");
}

#[test]
fn a_signal_that_ends_it_leaves_the_terminal_as_it_was() {
    in_terminal(&World::new(), "told");
}

#[test]
fn it_ends_with_its_terminal_also_where_it_ignores_that_signal() {
    in_terminal(&World::new(), "gone");
}
