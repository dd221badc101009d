//! A driver that refuses: every call of a sleep and of a wake fails once. The program finds its data or is
//! given an error of the driver's, never other data.

use std::collections::BTreeSet;

use lowtide_proto::Ask;
use lowtide_testing::double::REFUSALS;

use crate::program::{Program, Route, World};

fn started(world: &World) -> Program {
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_WAKE_TIMEOUT", "0s")]);
    program.does("start");
    program.does("alloc 0 2097152");
    program.does("alloc 1 2100000");
    program.does("write 0 5");
    program.does("write 1 6");
    program
}

/// Returns the calls that something makes: each name, and which of its calls are made to fail.
fn calls_of(program: &mut Program, what: impl Fn(&mut Program)) -> Vec<(String, u64)> {
    program.does("reset-calls");
    what(program);
    let calls: Vec<(String, u64)> =
        serde_json::from_str(&program.text("calls")).expect("a list of names and counts");
    // The first call of each name, and the last.
    let spread = |(name, count): (String, u64)| {
        BTreeSet::from([1, count]).into_iter().map(move |nth| (name.clone(), nth))
    };
    calls.into_iter().flat_map(spread).collect()
}

/// Wakes the program if it sleeps, without faults, and looks at its data.
fn finds_its_data(program: &mut Program, after: &str) {
    program.does("clear-faults");
    for block in ["check 0", "check 1"] {
        program.tell(block);
        assert_eq!(program.answer(), "ok", "{block} after {after}");
    }
}

#[test]
fn every_call_of_a_sleep_may_fail() {
    let world = World::new();
    let mut program = started(&world);
    // The first sleep also prepares what the others find.
    program.ask(Ask::Sleep);
    finds_its_data(&mut program, "the first sleep");
    program.does("write 0 7");
    let calls = calls_of(&mut program, |program| drop(program.ask(Ask::Sleep)));
    assert!(calls.len() > 20, "{calls:?}");
    finds_its_data(&mut program, "the second sleep");
    let live = program.text("live");
    for (number, (name, nth)) in calls.iter().enumerate() {
        let fault = format!("fail={name}@{nth}:{}", REFUSALS[number % 2]);
        program.does(&format!("write 0 {number}"));
        program.does(&format!("fault {fault}"));
        let answer = program.ask(Ask::Sleep);
        finds_its_data(&mut program, &format!("{fault}: {answer:?}"));
    }
    assert!(program.status().obstacles.is_empty(), "{:?}", program.status());
    assert!(program.text("struck").parse::<u64>().expect("a number") > 20);
    program.ask(Ask::Sleep);
    finds_its_data(&mut program, "everything");
    assert_eq!(program.text("live"), live, "nothing is left behind");
}

#[test]
fn every_call_of_a_wake_may_fail() {
    let world = World::new();
    let mut program = started(&world);
    program.ask(Ask::Sleep);
    let calls = calls_of(&mut program, |program| program.does("check 0"));
    assert!(calls.len() > 10, "{calls:?}");
    let live = program.text("live");
    for (number, (name, nth)) in calls.iter().enumerate() {
        let fault = format!("fail={name}@{nth}:{}", REFUSALS[number % 2]);
        program.does(&format!("write 1 {number}"));
        program.ask(Ask::Sleep);
        program.does(&format!("fault {fault}"));
        program.tell("check 0");
        let answer = program.answer();
        assert!(answer == "ok" || answer.starts_with("error "), "{answer}");
        assert_ne!(answer, "error -2", "other data after {fault}");
        finds_its_data(&mut program, &fault);
    }
    assert!(program.status().obstacles.is_empty(), "{:?}", program.status());
    assert_eq!(program.text("live"), live, "nothing is left behind");
}

#[test]
fn a_driver_that_always_refuses_is_an_error_and_no_data_is_lost() {
    let world = World::new();
    let mut program = started(&world);
    for name in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"] {
        for code in REFUSALS {
            program.ask(Ask::Sleep);
            assert!(program.status().is_asleep);
            program.does(&format!("fault fail={name}:{code}"));
            program.tell("check 0");
            let answer = program.answer();
            assert!(answer.starts_with("error ") && answer != "error -2", "{name}: {answer}");
            assert!(program.status().is_asleep, "{name}");
            finds_its_data(&mut program, name);
        }
    }
}
