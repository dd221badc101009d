//! The interpreter's heap, walked: who refers to whom, from its roots on.
//!
//! The walk goes forward through each type's traverse slot, so that it sees what the collector does
//! not list: frozen objects, untracked ones, what running functions have in their variables. It runs
//! with the interpreter's lock held and calls nothing that runs Python code until it is over; so no
//! object goes or changes meanwhile, and addresses are enough: the walk keeps nothing alive.

mod answer;
mod frozen;
mod kinds;
mod leads;
mod listing;
mod memory;
mod object;
mod question;
mod resting;
mod roots;
mod table;
mod traverse;
mod variables;
mod walk;
mod walked;

pub(crate) use answer::examine;
pub(crate) use frozen::frozen_mortals;
pub(crate) use leads::leads_to;
