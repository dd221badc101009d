//! The walk over the interpreter's heap: who refers to whom, from the roots on.
//!
//! The walk goes forward through each type's traverse slot, so that it sees what the collector does
//! not list: frozen objects, untracked ones, variables of running functions. It runs with the
//! interpreter's lock held, and no Python code runs until it is over. So no object is freed or
//! changed meanwhile, addresses are enough, and the walk keeps nothing alive.
//!
//! A question passes the rooms in this order: `start`, `ask`, `walk`, `memory`, `answer`. `safety`
//! serves all of them, and `rare` is apart.
#![allow(unsafe_code, reason = "the heap of an interpreter is walked by its own pointers")]
#![allow(
    clippy::missing_errors_doc,
    clippy::implicit_hasher,
    reason = "Python calls these functions, and its own documentation says what they raise"
)]

mod answer;
mod ask;
mod memory;
mod rare;
mod safety;
mod start;
mod walk;

pub use answer::examine::examine;
pub use answer::results::{
    CutEdge, DeadCycle, DroppedReference, Examination, HeapCut, HeapPath, HeldObject, NativeObject,
    RetainedSize, ShutdownPlan,
};
pub use answer::shutdown::plan_shutdown;
pub use ask::dlpack::{Shown, dlpack_memory};
pub use ask::kind::{Kind, TypeKind};
pub use ask::references::{led_to, position, referents, refers};
pub use memory::nodes::listed_memory;
pub use memory::reported::{Memory, MemoryKind};
pub use rare::{NodeHooks, exit_calls, hook_lists, kept_by, module_state, thread_state};
pub use safety::ending::{call_function, call_method};
pub use safety::one_at_a_time::{Alone, Examining};
pub use safety::own_memory::HugePages;
pub use start::frames::{frame_locals, frame_variables};
pub use start::frozen::{frozen_mortals, objects_of_type};
