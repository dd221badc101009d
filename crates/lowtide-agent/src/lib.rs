//! The agent: a library that a program loads before all others (`LD_PRELOAD`), so that every call to
//! the CUDA driver passes through it. It takes the program's device memory from the pool, which can
//! sleep, and wakes the program at its next touch of the device.
//!
//! It does nothing in a program that never looks the driver up.
//!
//! | folder | holds |
//! |---|---|
//! | `entry` | how the program finds the driver's functions, and the functions that stand in for them |
//! | `control` | the start, the worker, the socket on which others ask, the waker of the gate |
//! | `room` | calls that wait for room that other programs have |
//! | `sleep` | going to sleep and waking, suspending and resuming |
//! | `sharing` | memory that processes share by handles |
//! | `memory` | the program's memory: what can sleep, and what stays |
//! | `obstacles` | what keeps the process from sleeping |
//! | `gate` | the way into the driver: open, closing, asleep, suspended |
//! | `interpreter` | the Python interpreter of the process, if it has one |
//! | `driver` | the driver's functions, and the calls that the agent makes itself |
//! | `settings`, `threads`, `say` | variables, threads without signals, lines for people |
//! | `old_glibc` | functions that an old C library does not have |
//!
//! A file uses only those of rooms further down, and the gate gets its waker at the start.

mod control;
mod driver;
mod entry;
mod gate;
mod interpreter;
mod memory;
mod obstacles;
mod old_glibc;
mod room;
mod say;
mod settings;
mod sharing;
mod sleep;
mod threads;
