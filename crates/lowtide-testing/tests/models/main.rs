//! The parts of lowtide that synchronise, under a model checker.
//!
//! The gate, the idle policy, the turns of a pool and the queue between its copying threads import
//! their locks from `crate::sync`. Here the same files are compiled a second time, beside a `sync` whose
//! locks are loom's, so that the models try every order in which threads can come. The crates themselves
//! know of no model. `cargo test -p lowtide-testing --test models`.
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

mod gate_orders;
mod sync;
mod turn_orders;

// Of `lowtide-release`.
#[path = "../../../lowtide-release/src/clock.rs"]
pub mod clock;
#[path = "../../../lowtide-release/src/fork.rs"]
mod fork;
#[path = "../../../lowtide-release/src/gate/mod.rs"]
pub mod gate;
#[path = "../../../lowtide-release/src/requests/idle/mod.rs"]
pub mod idle;

// Of `lowtide-pool`, in its folders.
#[path = "../../../lowtide-pool/src/error.rs"]
pub mod error;
#[path = "../../../lowtide-pool/src/copy"]
pub mod copy {
    pub mod queue;
}
#[path = "../../../lowtide-pool/src/lock"]
pub mod lock {
    pub(crate) mod inside;
    pub mod limit;
    pub mod monitor;
    pub(crate) use crate::sync::*;
}
#[path = "../../../lowtide-pool/src/state"]
pub mod state {
    pub mod tags;
}

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

pub use error::{Error, Result};
pub use lock::limit::Limit;

fn main() -> ExitCode {
    let models = [gate_orders::MODELS, turn_orders::MODELS].concat();
    let trial = |(name, model): (&str, fn())| {
        Trial::test(name, move || {
            model();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), models.into_iter().map(trial).collect()).exit_code()
}

/// Makes a list of models from the names of their functions.
macro_rules! models {
    ($($model:ident),* $(,)?) => { &[$((stringify!($model), $model)),*] };
}
use models;
