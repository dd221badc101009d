//! Releases for Python: the ladder of `lowtide`, climbed with rungs that Python provides.
//!
//! Python describes a device, hooks and witnesses by objects of its own. Order, time limits,
//! isolation, readings, verdicts and receipts are those of every other release. Three rules prevent
//! deadlocks between the interpreter's lock and ours:
//!
//! - a call from Python detaches from the interpreter before it takes one of our locks;
//! - a call into Python holds none of our locks but the climber's turn and the one that wakes at the gate, which nobody waits for while attached;
//! - a call of the main thread is done by another thread, so that Ctrl-C is noticed.
//!
//! From the ground up: `values`, `ledger`, `receipt` (data), `attached`, `json`, `parse`, `call`,
//! `climb` (tools), `device`, `hooks`, `request` (what Python provides), `tree` (processes that end), `releaser`, and `gate`,
//! `pauses`, `idle`, `stages` on top of it. `agent` asks the agent of this process, `suspended` the helper while the process is suspended.

mod agent;
mod attached;
mod call;
mod climb;
mod device;
mod gate;
mod hooks;
mod idle;
mod json;
mod ledger;
mod machine;
mod parse;
mod pauses;
mod receipt;
mod releaser;
mod request;
mod restored;
mod stages;
mod suspended;
mod tree;
mod values;

pub(crate) use agent::{
    AgentError, AgentStatus, agent_sleep, agent_status, agent_suspend, agent_wake,
};
pub(crate) use call::{CallClock, waiting};
pub(crate) use gate::{Gate, GateState, Pass};
pub(crate) use hooks::HookPoint;
pub(crate) use idle::{Idle, Tick, Working};
pub(crate) use ledger::{Ledger, LedgerKind, LedgerLine};
pub(crate) use machine::{
    NvmlUsage, ProcessMemory, malloc_counts, malloc_trim, malloc_trimmable, memory_of_process,
    nvml_memory, nvml_usage, process_memory,
};
pub(crate) use parse::{parse_bytes, parse_seconds};
pub(crate) use pauses::{Busy, Pauses, Resumed, Trend, TrendWarning};
pub(crate) use receipt::{Reading, Receipt, RungReceipt, empty_receipt};
pub(crate) use releaser::Releaser;
pub(crate) use request::Ladder;
pub(crate) use restored::Restored;
pub(crate) use stages::{Opened, StageReport, Stages, StagesReport, WouldNotFit};
pub(crate) use suspended::{agent_is_asleep, agent_is_suspended};
pub(crate) use tree::ProcessTree;
pub(crate) use values::{AllocatorCounts, Claim, Holder, ProcessUsage, Touch, Usage};
