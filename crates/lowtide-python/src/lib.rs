//! The native part of the Python package `lowtide`: walking the heap of the interpreter, releases, and
//! memory that torch allocates in tags.
#![allow(unsafe_code, reason = "the heap of an interpreter is walked by its own pointers")]

mod printable;
mod release;
mod tagged;

use lowtide_walk::HugePages;
use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

/// The native module: it walks the heap and climbs ladders, which Python cannot do itself.
#[pymodule]
mod _native {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::printable::printable;
    #[pymodule_export]
    use super::release::{
        AgentError, AgentStatus, AllocatorCounts, Busy, Claim, Gate, GateState, Holder, HookPoint,
        Idle, Ladder, Ledger, LedgerKind, LedgerLine, NvmlUsage, Opened, Pass, Pauses,
        ProcessMemory, ProcessTree, ProcessUsage, Reading, Receipt, Releaser, Restored, Resumed,
        RungReceipt, StageReport, Stages, StagesReport, Tick, Touch, Trend, TrendWarning, Usage,
        Working, WouldNotFit, agent_is_asleep, agent_is_suspended, agent_sleep, agent_status,
        agent_suspend, agent_wake, empty_receipt, malloc_counts, malloc_trim, malloc_trimmable,
        memory_of_process, nvml_memory, nvml_usage, parse_bytes, parse_seconds, process_memory,
    };
    #[pymodule_export]
    use super::tagged::{
        TagError, TagScope, TagStatus, tag_at, tag_refusal, tags, tags_ahead, tags_ahead_end,
        tags_ahead_state, tags_sleep, tags_wake,
    };
    #[pymodule_export]
    use lowtide_walk::{
        Alone, CutEdge, DeadCycle, Examination, Examining, HeapCut, HeapPath, HeldObject, Lead,
        Leads, Kind, Memory, MemoryKind, NativeObject, NodeHooks, RetainedSize, Shown,
        TypeKind, dlpack_memory, examine, exit_calls, frame_locals, frame_variables,
        frozen_mortals, hook_lists, is_frozen, kept_by, leads_to, led_to, listed_memory,
        module_state, objects_of_type, position, referents, refers, thread_state,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
