//! The walk itself: numbers for all objects, and the references between them, found by several threads.

pub(crate) mod caller;
pub(crate) mod heap_walk;
pub(crate) mod listing;
pub(crate) mod object_table;
pub(crate) mod pieces;
pub(crate) mod threads;
pub(crate) mod walked;
pub(crate) mod walker;
