//! Releases for Python: the ladder of `lowtide` climbed with rungs that Python brings.
//!
//! What Python knows (a framework's allocator, its collector, who holds a tensor) it tells through
//! plain objects and callables; order, time limits, isolation, readings, verdicts and receipts are
//! those of every other release. Three rules keep the interpreter's lock and ours apart: whoever comes
//! in lets go of the interpreter before taking a lock of ours; whoever calls back holds none but the
//! climber's turn, for which nobody waits attached; and a call of the main thread is done by another,
//! so that Ctrl-C is heard.

mod answers;
mod ask;
mod call;
mod device;
mod gate;
mod idle;
mod memory;
mod receipt;
mod releaser;
mod stages;

pub(crate) use gate::{Busy, Gate, Pass, Pauses};
pub(crate) use idle::{Idle, Working};
pub(crate) use memory::{malloc_counts, malloc_trim, nvml_usage, process_memory};
pub(crate) use receipt::{Holder, Reading, Receipt, RungReceipt};
pub(crate) use releaser::{Releaser, parse_bytes, parse_seconds};
pub(crate) use stages::{Opened, Stages, WouldNotFit};
