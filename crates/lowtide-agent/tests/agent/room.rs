//! A wake that finds the device full.

use lowtide_proto::{Answer, Ask, NoRoom};
use lowtide_types::Bytes;

use crate::program::{Program, Route, World};
use crate::slept;

/// Starts a program that sleeps, and another one that has taken its room: the device has 200 MiB.
fn crowded(world: &World, timeout: &str) -> (Program, Program) {
    let small = ("LOWTIDE_DOUBLE", "total=200MiB");
    let mut program = world.start_with(Route::Dlsym, &[small, ("LOWTIDE_WAKE_TIMEOUT", timeout)]);
    program.does("alloc 0 16777216; write 0 5");
    slept(&program);
    let mut other = world.start_with(Route::Dlsym, &[small]);
    other.does("alloc 0 33554432");
    (program, other)
}

#[test]
fn a_wake_without_room_fails_in_time_and_can_be_tried_again() {
    let world = World::new();
    let (mut program, mut other) = crowded(&world, "300ms");
    for _ in 0..2 {
        assert_eq!(program.text("check 0"), "error 2", "the driver's code for out of memory");
        assert!(program.status().is_asleep);
    }
    let Answer::NoRoom(NoRoom { needed, free, holders, .. }) = program.ask(Ask::Wake) else {
        panic!("{:?}", program.status());
    };
    assert!(needed == Bytes::mib(16) && free < needed, "{needed} {free}");
    assert!(holders.contains(&other.pid()), "{holders}");
    let said = world.said();
    assert!(said.contains("waiting to wake") && said.contains(&other.pid()), "{said}");
    other.does("free 0");
    program.does("check 0");
    assert!(!program.status().is_asleep);
}

#[test]
fn a_thread_that_is_cancelled_while_it_waits_does_not_end_the_program() {
    let world = World::new();
    let (mut program, mut other) = crowded(&world, "300ms");
    assert_eq!(program.text("cancel 0"), "error 2");
    other.does("free 0");
    program.does("check 0");
}

#[test]
fn a_thread_that_is_cancelled_in_the_driver_leaves_the_gate() {
    let world = World::new();
    world.with_waiting_driver();
    let mut program = world.start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5; cancel-wait");
    slept(&program);
    program.does("check 0");
}

#[test]
fn a_wake_goes_on_as_soon_as_there_is_room() {
    let world = World::new();
    let (mut program, mut other) = crowded(&world, "60s");
    program.tell("check 0");
    while !world.said().contains("waiting to wake") {
        assert!(!program.has_answered(), "there is no room");
    }
    other.does("free 0");
    assert_eq!(program.answer(), "ok");
}

#[test]
fn all_contexts_wake_or_none_does() {
    let world = World::new();
    let small = ("LOWTIDE_DOUBLE", "total=400MiB");
    let mut program = world.start_with(Route::Dlsym, &[small, ("LOWTIDE_WAKE_TIMEOUT", "300ms")]);
    program.does("alloc 0 16777216; write 0 5; second; alloc 1 16777216; write 1 6");
    slept(&program);
    // Leaves room for one of the two.
    let mut other = world.start_with(Route::Dlsym, &[small]);
    other.does("alloc 0 159383552");
    assert_eq!(program.text("check 0"), "error 2", "the driver's code for out of memory");
    let status = program.status();
    assert!(status.is_asleep && status.contexts.len() == 2, "{status:?}");
    assert!(status.contexts.iter().all(|one| one.on_device == Bytes::ZERO), "{status:?}");
    other.does("free 0");
    program.does("check 0; check 1");
}
