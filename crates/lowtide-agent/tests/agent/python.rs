//! Python programs: torch's cache goes before a sleep. The tests of the package try it with a real torch.

use std::path::Path;
use std::process::Command;

use lowtide_proto::{Answer, Ask};

use crate::program::{Program, World, agent};
use crate::slept;

/// Starts the client; `None` where there is no Python, which is said.
fn start(world: &World) -> Option<Program> {
    let python = Path::new("python3");
    if Command::new(python).arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return None;
    }
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/client.py");
    let mut command = world.command(python);
    let mut program = world.spawn(command.arg(client).env("LD_PRELOAD", agent()));
    program.does("start; alloc 0 4194304");
    Some(program)
}

#[test]
fn the_cache_of_torch_goes_before_a_sleep() {
    let world = World::new();
    let Some(mut program) = start(&world) else { return };
    slept(&program);
    assert_eq!(program.number("trims"), 0, "there is no torch");
    program.does("check 0; torch fake yes");
    slept(&program);
    assert_eq!(program.number("trims"), 1);
    program.does("check 0; torch fake no");
    slept(&program);
    assert_eq!(program.number("trims"), 1, "it has not begun to use the device");
    program.does("check 0; torch failing yes");
    slept(&program);
    assert_eq!(program.number("trims"), 2, "an error of torch's is torch's own");
    program.does("check 0");
}

#[test]
fn what_is_shared_after_the_look_for_obstacles_keeps_the_process_awake() {
    let world = World::new();
    let Some(mut program) = start(&world) else { return };
    program.does("torch sharing yes");
    let Answer::Refused { reason } = program.ask(Ask::Sleep) else { panic!("it slept") };
    assert!(reason.contains("cuMemExportToShareableHandle"), "{reason}");
    assert!(!program.status().is_asleep);
    program.does("check 0");
}

#[test]
fn a_program_that_keeps_the_interpreters_lock_sleeps_without_it() {
    let world = World::new();
    let Some(mut program) = start(&world) else { return };
    program.does("torch fake yes");
    assert_eq!(program.text("hold"), "holding");
    let answer = program.ask(Ask::Sleep);
    assert!(matches!(answer, Answer::Slept { .. }), "{answer:?}");
    assert!(!program.has_answered(), "it holds the lock");
    assert_eq!(program.text("x"), "ok");
    assert_eq!(program.number("trims"), 0, "what comes late is left alone");
    assert!(program.status().is_asleep);
    program.does("check 0");
}

#[test]
fn a_child_that_is_forked_during_a_call_to_torch_does_not_wait_for_it() {
    let world = World::new();
    let Some(mut program) = start(&world) else { return };
    program.does("torch slow yes");
    slept(&program);
    assert!(!program.has_answered(), "it is in torch's code");
    program.does("fork");
    program.end_of_input();
    assert_eq!(program.answer(), "trimmed");
}

#[test]
fn an_interpreter_that_ends_waits_for_a_call_to_torch() {
    let world = World::new();
    let Some(mut program) = start(&world) else { return };
    program.does("torch slow yes");
    slept(&program);
    assert!(!program.has_answered(), "it is in torch's code");
    program.end_of_input();
    // Killed in there, a real torch ends the process with an error.
    assert_eq!(program.answer(), "trimmed");
}
