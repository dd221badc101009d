//! The agent: a library that a program loads before all others (`LD_PRELOAD`), so that every call to
//! the CUDA driver passes through it. It takes the program's device memory from the pool, which can
//! sleep, and wakes the program at its next touch of the device.
//!
//! It does nothing in a program that never looks the driver up.
//!
//! | file | holds |
//! |---|---|
//! | `thread` | two words of each thread, reached without allocating |
//! | `gate` | the way into the driver: open, closing, asleep |
//! | `loader` | `dlsym`, and the driver that the program loaded |
//! | `entries` | a function of ours for each function of the driver, from `table/driver.tsv` |
//! | `unknown` | functions that are not in the table |
//! | `hooks` | the functions that the agent answers or notes itself |
//! | `memory` | the program's allocations, by context |
//! | `virtual_memory` | virtual memory that the program makes itself |
//! | `attributes`, `arrays` | what the driver says of addresses and arrays |
//! | `contexts`, `primaries` | the contexts of the program |
//! | `obstacles` | what keeps the process from sleeping |
//! | `surroundings` | the same, where no driver call shows it |
//! | `staying` | memory that stays on the device |
//! | `agent` | going to sleep and waking |
//! | `worker` | the thread that does both, when asked or when the program has been idle |
//! | `idle` | when that is |
//! | `older` | functions that an old C library does not have |
//! | `interpreter`, `pools` | torch's cache and the driver's, which go before a sleep |
//! | `quiet` | whether work is on the device |
//! | `control` | the socket on which other processes ask |

mod agent;
mod arrays;
mod attributes;
mod contexts;
mod control;
mod entries;
mod gate;
mod hooks;
mod idle;
mod interpreter;
mod loader;
mod memory;
mod obstacles;
mod older;
mod pools;
mod primaries;
mod quiet;
mod say;
mod staying;
mod surroundings;
mod suspending;
mod thread;
mod unknown;
mod virtual_memory;
mod worker;
