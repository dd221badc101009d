//! The parts of lowtide that synchronise, under a model checker.
//!
//! The gate, the idle policy, the turns of a pool and the hand-over between its copying threads import
//! their locks from `crate::sync`. Here the same files are compiled a second time, beside a `sync` whose
//! locks are loom's, so that the tests try every order in which threads can come. A crate of its own
//! costs little: only these files are compiled again, and the crates themselves know of no model.
// The examples in the files are tested where they belong.
#![cfg(not(doctest))]
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "the files are judged in the crates that they belong to"
)]

mod sync;

// Of `lowtide-release`.
#[path = "../../lowtide-release/src/clock.rs"]
pub mod clock;
#[path = "../../lowtide-release/src/gate/mod.rs"]
pub mod gate;
#[path = "../../lowtide-release/src/home.rs"]
mod home;
#[path = "../../lowtide-release/src/idle/mod.rs"]
pub mod idle;

// Of `lowtide-pool`.
#[path = "../../lowtide-pool/src/error.rs"]
pub mod error;
#[path = "../../lowtide-pool/src/handover.rs"]
pub mod handover;
#[path = "../../lowtide-pool/src/inside.rs"]
mod inside;
#[path = "../../lowtide-pool/src/lanes.rs"]
pub mod lanes;
#[path = "../../lowtide-pool/src/limit.rs"]
pub mod limit;
#[path = "../../lowtide-pool/src/monitor.rs"]
pub mod monitor;
#[path = "../../lowtide-pool/src/tag.rs"]
pub mod tag;
#[path = "../../lowtide-pool/src/tags.rs"]
pub mod tags;
#[path = "../../lowtide-pool/src/turn_step.rs"]
pub mod turn_step;

pub use error::{Error, Result};
pub use limit::Limit;
