//! The native part of the Python package `lowtide`: walking the heap of the interpreter, releases, and
//! memory that torch allocates in tags.
#![allow(unsafe_code, reason = "the heap of an interpreter is walked by its own pointers")]

mod calls;
mod data;
mod machine;
mod printable;
mod provided;
mod release;
mod tagged;

use lowtide_walk::HugePages;
use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

/// The native module: it walks the heap and climbs ladders, which Python cannot do itself.
#[pymodule]
mod _native {
    use lowtide_device::tallies;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use crate::{
        calls::parse::{parse_bytes, parse_seconds},
        data::ledger::{Ledger, LedgerKind, LedgerLine},
        data::receipt::{Reading, Receipt, Restored, RungReceipt, empty_receipt},
        data::report::report_page,
        data::values::{AllocatorCounts, Claim, Holder, ProcessUsage, Touch, Usage},
        machine::agent::{
            AgentError, AgentStatus, agent_sleep, agent_status, agent_suspend, agent_wake,
        },
        machine::numbers::{
            NvmlUsage, ProcessMemory, malloc_counts, malloc_trim, malloc_trimmable,
            memory_of_process, nvml_memory, nvml_usage, process_memory,
        },
        machine::process_tree::ProcessTree,
        machine::suspended::{agent_is_asleep, agent_is_suspended},
        printable::printable,
        provided::hooks::HookPoint,
        provided::request::Ladder,
        release::gate::{Gate, GateState, Pass},
        release::idle::{Idle, Tick, Working},
        release::pauses::{Busy, Pauses, Resumed, Trend, TrendWarning},
        release::releaser::Releaser,
        release::stages::{Opened, StageReport, Stages, StagesReport, WouldNotFit},
        tagged::ahead::{tags_ahead, tags_ahead_end, tags_ahead_state},
        tagged::error::TagError,
        tagged::scope::TagScope,
        tagged::turns::{TagStatus, tag_at, tag_refusal, tags, tags_sleep, tags_wake},
    };
    #[pymodule_export]
    use lowtide_walk::{
        Alone, CutEdge, DeadCycle, DroppedReference, Examination, Examining, HeapCut, HeapPath,
        HeldObject, Kind, Memory, MemoryKind, NativeObject, NodeHooks, RetainedSize, Shown,
        ShutdownPlan, TypeKind, dlpack_memory, examine, exit_calls, frame_locals, frame_variables,
        frozen_mortals, hook_lists, kept_by, led_to, listed_memory, module_state, objects_of_type,
        plan_shutdown, position, referents, refers, thread_state,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        tallies::begin("python", None);
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
