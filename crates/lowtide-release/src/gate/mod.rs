//! The gate: work passes through it, a pause or a release closes it.
//!
//! A release that frees, moves or measures memory while work uses that memory proves nothing and
//! breaks things. So work holds a [`Pass`], and a release holds [`Closed`]. The two never exist at
//! the same time, except for work that is parked at a [checkpoint](Pass::checkpoint) and touches
//! nothing.
//!
//! An open is an open: all work that waited when the gate opened goes through, even if the gate is
//! closed again before its threads run. Opening counts the waiting work as active, so no work starves
//! behind a chain of closers, and the next closer waits for it.
//!
//! The gate has no clock. [`Gate::close`] sleeps until the last work stops; [`Gate::close_within`]
//! polls by the clock that it is given.
//!
//! # Files
//!
//! `report` is plain data; `word` is the atomic word; `core` is what the word and the waiting threads
//! share; `guards` are those of work and of a closer; `holders` tells who is in the way; `gate` is the public
//! face.

mod core;
#[expect(clippy::module_inception, reason = "it holds the type of that name, the others its parts")]
mod gate;
mod guards;
mod holders;
mod report;
mod word;

pub(crate) use core::Inside;
pub use gate::Gate;
pub use guards::{Closed, Outer, OwnedPass, Pass};
pub use report::{Busy, GateState, Mode, Step};
