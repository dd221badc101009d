//! The driver double: a shared object that stands in for libcuda and NVML over host
//! memory, so that every CUDA path can be tested where there is no GPU.
//!
//! **It is a test tool.** It says so wherever a device name is asked for, runs no
//! kernels but lowtide's own, and tells nothing about speed. Load it in place of
//! the driver (`LOWTIDE_CUDA_LIBRARY`), drive it through [`Double`] or, for a program of
//! its own, by `LOWTIDE_DOUBLE` (settings and faults, listed in `settings`).
//! Processes that name the same file in `LOWTIDE_DOUBLE_STATE` are on one machine;
//! without it each process is alone on its own.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | machine | the part that processes share: sizes, memory by process, checkpoint states |
//! | reservation | address space without memory; touching it directly is a fault |
//! | extent | memory of this machine that plays device memory, one per handle |
//! | region | addresses with an extent behind them: a mapping or a plain allocation |
//! | operation | work on a stream; it runs late, on a thread |
//! | entry | an exported function, always through `entry!` |
//!
//! # Rules
//!
//! The rules are what an H200 with driver 580.159.04 answers to each misuse; the suite
//! `rules` asks both. By the file that enforces them:
//!
//! * `vmm`: a mapping is a whole handle at offset 0; an unmap or a set-access cuts no
//!   mapping; access is set anew after each map; a reservation is freed whole and
//!   empty; memory is freed when neither mapping nor unreleased handle is left.
//! * `plain`: `cuMemFree` and `cuIpcGetMemHandle` refuse virtual memory; host ranges
//!   do not overlap, and a copy does not cross the boundary of one; freeing and
//!   unregistering wait for work.
//! * `copy` and `run`: ranges are checked at the call (1) and when the work runs (719; kernels
//!   700), after which the process has lost its contexts and gets no other.
//! * `stream` and `queue`: order, lateness, recycled handles. `cuMemUnmap` waits for
//!   nothing.
//! * `capture_rules`: unsafe calls invalidate; an end by the wrong thread is the end.
//! * `current` and `context`: a stack per thread; what needs a context answers 201
//!   without one.
//! * `gate` and `checkpoint`: which calls wait while a process is locked, and the states.
//!
//! # Files
//!
//! A file uses files of its own line or of lines above. No two use each other.
//!
//! | files | what they hold |
//! |---|---|
//! | `files`, `memory`, `settings`, `pointers`, `shares` | memory of this machine and what says whose it is, settings, C pointers |
//! | `machine`, `faults`, `objects`, `sharing`, `tables`, `current` | what processes share, and the tables of one |
//! | `capture_rules`, `gate`, `run`, `queue` | rules for every call, and work that runs late |
//! | `entry` | how an exported name is entered |
//! | `device`, `context`, `vmm`, `plain`, `copy`, `stream`, `kernel`, `capture`, `checkpoint`, `procedures`, `nvml` | the entries |
//! | `control`, `loaded` | the double's own entries, and a test's side of them |
//!
//! # Where it is stricter than the driver
//!
//! * A mapping must lie within one reservation (the driver maps past its end), and so
//!   must the range of an unmap or set-access.
//! * New memory is not zero (on a GPU it may be).
//! * A host program that follows a device pointer faults, always; on a GPU it does too,
//!   but not on every machine (coherent ones).
//! * Work finds device memory gone if it goes while the work runs, not only if the
//!   hardware happens to reach it.
//! * A lost context takes those of other devices with it, and cannot be retained again
//!   while it is retained. Neither was asked of a GPU.
//! * Plain allocations end where the caller said, not at the driver's rounding.
//! * The per-thread default stream is refused, and so are events and pageable memory in
//!   a capture. A handle that is none is an answer (400), where the driver may crash.
//! * A restore without room fails at once and leaves the process `FAILED`.

mod capture;
mod capture_rules;
mod checkpoint;
mod context;
mod control;
mod copy;
mod current;
mod device;
mod entry;
mod faults;
mod files;
mod gate;
mod ipc;
mod kernel;
mod launch;
mod loaded;
mod machine;
mod memory;
mod nvml;
mod objects;
mod plain;
mod pointers;
mod pools;
mod procedures;
mod queue;
mod run;
mod settings;
mod shares;
mod sharing;
mod stream;
mod tables;
mod vmm;

use crate::code;

pub use control::Live;
pub use loaded::{Double, DoubleGuard, REFUSABLE, REFUSALS};
