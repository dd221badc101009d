//! A driver that refuses: every call of a sleep and of a wake fails once. The program finds its data or is
//! given an error of the driver's, never other data.

use std::collections::BTreeSet;

use lowtide_proto::Ask;
use lowtide_testing::double::REFUSALS;

use crate::MIB;
use crate::program::{Program, Route, World};

fn started(world: &World) -> Program {
    let mut program = world.start_with(Route::Dlsym, &[("LOWTIDE_WAKE_TIMEOUT", "0s")]);
    program.does("alloc 0 2097152; alloc 1 2100000");
    // Virtual memory of its own, in two places, and some that is mapped nowhere.
    for number in [2, 3] {
        program.makes(number, 4 * MIB);
    }
    program.does("reserve 4 4194304; map 4 2; grant 4 1");
    for (block, seed) in [(0, 5), (1, 6), (2, 7), (3, 8)] {
        program.does(&format!("write {block} {seed}"));
    }
    program.does("unmap 3");
    program
}

/// Returns the calls that something makes: each name, and which of its calls are made to fail.
fn calls_of(program: &mut Program, what: impl Fn(&mut Program)) -> Vec<(String, u64)> {
    program.does("reset-calls");
    what(program);
    let calls: Vec<(String, u64)> =
        serde_json::from_str(&program.text("calls")).expect("a list of names and counts");
    // The first call of each name, and the last; all of those that pools and the agent share.
    let spread = |(name, count): (String, u64)| {
        let is_shared = ["cuMemMap", "cuMemUnmap", "cuMemSetAccess"].contains(&name.as_str());
        let all = if is_shared { (1..=count).collect() } else { BTreeSet::from([1, count]) };
        all.into_iter().map(move |nth| (name.clone(), nth))
    };
    calls.into_iter().flat_map(spread).collect()
}

/// Wakes the program if it sleeps, without faults, and looks at its data.
fn finds_its_data(program: &mut Program, after: &str) {
    program.does("clear-faults; same 4 2");
    let twice = ["check 4", "map 3 3", "grant 3 3", "check 3", "unmap 3"];
    for line in ["check 0", "check 1", "check 2"].into_iter().chain(twice) {
        assert_eq!(program.text(line), "ok", "{line} after {after}");
    }
}

/// Looks at what the program has at the driver. How many staging buffers a turn makes depends on how busy the machine
/// is; one that was lost by each fault would be many more.
fn leaves_nothing_behind(program: &mut Program, before: &str) {
    let counted = |text: &str| {
        let mut counts: serde_json::Value = serde_json::from_str(text).expect("counts");
        let buffers = counts.as_object_mut().and_then(|counts| counts.remove("host_allocations"));
        (counts, buffers.and_then(|count| count.as_u64()).expect("a number"))
    };
    let ((before, buffers), (now, buffers_now)) = (counted(before), counted(&program.text("live")));
    assert_eq!(now, before, "nothing is left behind");
    assert!(buffers_now <= buffers + 6, "{buffers_now} buffers instead of {buffers}");
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
        program.does(&format!("write {} {number}; fault {fault}", number % 3));
        let answer = program.ask(Ask::Sleep);
        finds_its_data(&mut program, &format!("{fault}: {answer:?}"));
    }
    assert!(program.status().obstacles.is_empty(), "{:?}", program.status());
    assert!(program.text("struck").parse::<u64>().expect("a number") > 20);
    program.ask(Ask::Sleep);
    finds_its_data(&mut program, "everything");
    leaves_nothing_behind(&mut program, &live);
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
        program.does(&format!("write {} {number}", number % 3));
        program.ask(Ask::Sleep);
        program.does(&format!("fault {fault}"));
        program.tell(["check 2", "check 0"][number % 2]);
        let answer = program.answer();
        assert!(answer == "ok" || answer.starts_with("error "), "{answer}");
        assert_ne!(answer, "error -2", "other data after {fault}");
        finds_its_data(&mut program, &fault);
    }
    assert!(program.status().obstacles.is_empty(), "{:?}", program.status());
    leaves_nothing_behind(&mut program, &live);
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

#[test]
fn virtual_memory_that_the_driver_did_not_take_back_is_no_other_handles() {
    let mut program = Program::start(Route::Dlsym);
    program.does("create 0 4194304");
    let live = program.text("live");
    // The memory stays with the pool for now; a smaller handle must not get a part of it.
    program.does("fault fail=cuMemUnmap@1:999; uncreate 0");
    assert_eq!(program.text("struck"), "1");
    for number in [0, 1] {
        program.makes(number, 2 * MIB);
        program.does(&format!("write {number} {number}"));
    }
    assert!(program.status().staying.is_empty(), "{:?}", program.status());
    program.ask(Ask::Sleep);
    assert!(program.status().is_asleep);
    for number in [0, 1] {
        program.does(&format!("check {number}; unmap {number}; uncreate {number}"));
        program.does(&format!("unreserve {number}"));
    }
    program.does("create 0 4194304");
    let handles = |live: &str| {
        let live: serde_json::Value = serde_json::from_str(live).expect("counts");
        (live["handles"].clone(), live["mappings"].clone())
    };
    assert_eq!(handles(&program.text("live")), handles(&live), "nothing is left behind");
}
