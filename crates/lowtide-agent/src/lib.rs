//! The agent: a library that a program loads before all others (`LD_PRELOAD`), so that every call to
//! the CUDA driver passes through it. It takes the program's device memory from the pool, which can
//! sleep, and wakes the program at its next touch of the device.
//!
//! It does nothing in a program that never looks the driver up.
//!
//! | folder | holds |
//! |---|---|
//! | `entry` | how the program finds the driver's functions, and the functions that stand in for them |
//! | `gate` | the way into the driver: open, closing, asleep, suspended |
//! | `memory` | the program's memory: what can sleep, and what stays |
//! | `sleep` | going to sleep and waking, suspending and resuming, and what is in the way of it |
//! | `control` | the thread that does so, when it does by itself, and the socket on which others ask |
//! | `driver` | the calls that the agent makes itself |
//! | `old_glibc` | functions that an old C library does not have |

mod control;
mod driver;
mod entry;
mod gate;
mod memory;
mod old_glibc;
mod say;
mod sleep;
