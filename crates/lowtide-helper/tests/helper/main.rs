//! The helper as a process, on the driver double.

mod faults;
mod refusals;
mod rungs;
mod sharing;
mod survival;
mod suspending;
mod world;

/// Plays the program that is suspended, in a process of its own; does nothing as a test.
#[test]
fn the_program_that_is_suspended() {
    world::play();
}
