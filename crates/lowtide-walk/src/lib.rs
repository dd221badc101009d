//! The walk over the interpreter's heap: who refers to whom, from the roots on.
//!
//! The walk goes forward through each type's traverse slot, so that it sees what the collector does
//! not list: frozen objects, untracked ones, variables of running functions. It runs with the
//! interpreter's lock held, and no Python code runs until it is over. So no object is freed or
//! changed meanwhile, addresses are enough, and the walk keeps nothing alive.
//!
//! `question` is what Python asks; `roots`, `variables`, `listing`, `generations` and `frozen` are where
//! the walk begins; `exit` is what `atexit` has, and `state` what the interpreter holds itself;
//! `node_hooks` has the hooks of autograd's nodes; `traverse`, `walker`, `kinds` and `slots` ask objects,
//! `walked`, `pieces` and `table` number them, `walk` drives both with the threads of `crew`, by what
//! `object` and `links` read; `huge` is where the tables are allocated; `memory` adds what tensors hold, by
//! what Python has `reported`; `pass` adds it up without a walk; `of_type` finds the objects of a type;
//! `search` follows references from a few objects; `answer`, `dead` and `leads` turn the `graph` into what was
//! `found`; `examining` has one examination wait for another.
#![allow(unsafe_code, reason = "the heap of an interpreter is walked by its own pointers")]
#![allow(
    clippy::missing_errors_doc,
    clippy::implicit_hasher,
    reason = "Python calls these functions, and its own documentation says what they raise"
)]

mod answer;
mod arrays;
mod capsules;
mod crew;
mod dead;
mod descent;
mod examining;
mod exit;
mod found;
mod frames;
mod frozen;
mod generations;
mod graph;
mod held;
mod huge;
mod interpreter;
mod kind;
mod kinds;
mod leads;
mod links;
mod listing;
mod lists;
mod memory;
mod memory_error;
mod node_hooks;
mod object;
mod object_kind;
mod of_type;
mod out_of_memory;
mod pass;
mod paths;
mod pieces;
mod prefetch;
mod question;
mod reported;
mod resting;
mod roots;
mod search;
mod slots;
mod state;
mod table;
mod traverse;
mod variables;
mod walk;
mod walked;
mod walker;

pub use answer::examine;
pub use capsules::{Shown, dlpack_memory};
pub use examining::{Alone, Examining};
pub use exit::exit_calls;
pub use found::{
    CutEdge, DeadCycle, Examination, HeapCut, HeapPath, HeldObject, Lead, Leads, NativeObject,
    RetainedSize,
};
pub use frames::{frame_locals, frame_variables};
pub use frozen::frozen_mortals;
pub use huge::HugePages;

pub use leads::leads_to;
pub use node_hooks::{NodeHooks, hook_lists};
pub use object_kind::{ObjectKind, TypeKind};
pub use of_type::{is_frozen, objects_of_type};
pub use pass::listed_memory;
pub use reported::{Memory, MemoryKind};
pub use search::led_to;
pub use slots::{position, referents, refers};
pub use state::{kept_by, module_state, thread_state};
