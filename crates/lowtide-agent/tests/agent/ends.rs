//! Contexts, captures and streams that end in unusual ways, and a standard error that nobody reads.

use lowtide_proto::Ask;

use crate::program::{Program, Route};
use crate::{MIB, slept};

#[test]
fn a_primary_context_that_the_driver_does_not_destroy_keeps_its_memory() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5");
    assert_eq!(program.text("no-primary"), "error 201");
    program.does("check 0");
    slept(&program);
    program.does("check 0; free 0");
}

#[test]
fn a_context_may_be_destroyed_at_any_moment_of_a_sleep() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5; fault copy_us=3000");
    for turn in 0..20 {
        program.does("second 0; alloc 1 8388608; write 1 6; alloc 2 8388608; write 2 7");
        program.tell(&format!("no-second {}", 2 * turn));
        // Asleep or busy: both are right.
        program.ask(Ask::Sleep);
        assert_eq!(program.answer(), "ok", "turn {turn}");
    }
    program.does("check 0");
    slept(&program);
    program.does("check 0");
}

#[test]
fn virtual_memory_outlives_its_context_also_where_that_ends_asleep() {
    let mut program = Program::start(Route::Dlsym);
    program.does("second 0");
    program.makes(1, 4 * MIB);
    program.does("write 1 8");
    slept(&program);
    program.does("no-second; check 1; write 1 9");
    slept(&program);
    program.does("check 1; unmap 1; uncreate 1");
}

#[test]
fn the_end_of_a_stream_that_does_not_capture_ends_no_capture() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; alloc 1 4194304; capture 0");
    assert_eq!(program.text("end-other"), "error 401");
    program.does("free 1");
    assert!(format!("{:?}", program.ask(Ask::Sleep)).contains("a graph is being captured"));
    program.does("end-capture; replay 0");
}

#[test]
fn a_capture_ends_with_its_stream_and_with_its_context() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; capture 0; drop-stream; alloc 1 8388608");
    let taken = program.number("info");
    program.does("free 1");
    assert_eq!(program.number("info"), taken - 8 * MIB);
    slept(&program);

    let mut program = Program::start(Route::Dlsym);
    program.does("second 0; alloc 0 4194304; capture 0; no-second; alloc 1 4194304; write 1 5");
    slept(&program);
    program.does("check 1");
}

#[test]
fn a_line_that_nobody_can_read_does_not_end_the_program() {
    let mut program = Program::start(Route::Dlsym);
    program.does("alloc 0 4194304; write 0 5; deaf");
    // It says that only programs with an agent can open it.
    assert_eq!(program.text("handle 0 0").len(), 128);
    program.does("check 0");
}
