//! The driver double: a shared object that stands in for libcuda and NVML over host
//! memory, so that every CUDA path can be tested where there is no GPU.
//!
//! **It is a test tool.** It calls itself one wherever a device name is asked for,
//! runs no kernels but lowtide's own digest, and says nothing about speed. Load it
//! in place of the driver (`LOWTIDE_CUDA_LIBRARY`), drive it through [`Double`] or, for
//! a program of its own, by `LOWTIDE_DOUBLE` (settings and faults, listed in `faults`).
//! Processes that name the same file in `LOWTIDE_DOUBLE_STATE` are on one machine;
//! without it each process is alone on its own.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | machine | what processes share: sizes, who uses how much, checkpoint states |
//! | reservation | address space without memory; nobody can touch it directly |
//! | extent | memory of this machine that plays device memory, one per handle |
//! | region | addresses with an extent behind them: a mapping or a plain allocation |
//! | operation | work on a stream; it runs late, on a thread |
//! | entry | an exported function, always through `entry!` |
//!
//! # Rules
//!
//! The rules are what an H200 with driver 580.159.04 answers to each misuse; `rules`
//! asks both. By the file that enforces them:
//!
//! * `vmm`: a mapping is a whole handle at offset 0; an unmap or a set-access cuts no
//!   mapping; access is set anew after each map; a reservation is freed whole and
//!   empty; memory is freed when neither mapping nor unreleased handle is left.
//! * `plain`: `cuMemFree` and `cuIpcGetMemHandle` refuse virtual memory; host ranges
//!   do not overlap, and a copy does not cross the boundary of one; freeing and
//!   unregistering wait for work.
//! * `copy`: ranges are checked at the call (1) and when the work runs (719; kernels
//!   700), after which the process has lost its contexts and gets no other.
//! * `stream`: order, lateness, recycled handles. `cuMemUnmap` waits for nothing.
//! * `capture`: unsafe calls invalidate; an end by the wrong thread is the end.
//! * `context`: a stack per thread; what needs a context says 201 without one.
//! * `checkpoint`: which calls wait while a process is locked, and the states.
//!
//! # Where it is stricter than the driver
//!
//! * A mapping must lie within one reservation (the driver maps past its end), and so
//!   must the range of an unmap or set-access.
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
mod code;
mod context;
mod control;
mod copy;
mod current;
mod device;
mod entry;
mod faults;
mod gate;
mod kernel;
mod loaded;
mod machine;
mod memory;
mod nvml;
mod objects;
mod plain;
mod pointers;
mod queue;
mod run;
mod settings;
mod state;
mod stream;
mod vmm;

pub use control::Live;
pub use loaded::{Double, DoubleGuard};
