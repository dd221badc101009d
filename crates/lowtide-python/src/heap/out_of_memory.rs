//! Out of memory while the heap is examined: a `MemoryError` of Python, never the end of the process.
//!
//! Tables that grow with the heap ask before they grow. Everything else is counted in a
//! [`Reserve`] that is taken before.

use std::collections::TryReserveError;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::huge::Reserve;

/// Small tables, and what is made of them.
const LITTLE: usize = 8 << 20;

/// There is not enough memory to examine the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl From<TryReserveError> for OutOfMemory {
    fn from(_: TryReserveError) -> OutOfMemory {
        OutOfMemory
    }
}

impl From<OutOfMemory> for PyErr {
    fn from(_: OutOfMemory) -> PyErr {
        PyMemoryError::new_err("there is not enough memory to examine the heap")
    }
}

/// Takes a reserve for tables whose size does not depend on the heap, and for so many bytes more.
pub(crate) fn reserve(bytes: usize) -> Result<Reserve, OutOfMemory> {
    Reserve::take(LITTLE.saturating_add(bytes)).ok_or(OutOfMemory)
}

/// Takes a reserve for the analysis of a graph: its documentation counts 117 bytes for a node of the
/// worst graph with four references each; paths and what becomes of them come on top.
pub(crate) fn reserve_for(nodes: usize, edges: usize) -> Result<Reserve, OutOfMemory> {
    reserve(nodes.saturating_mul(192).saturating_add(edges.saturating_mul(16)))
}

/// Returns an error if a reserve had to be given back.
pub(crate) fn check(reserve: &Reserve) -> Result<(), OutOfMemory> {
    if reserve.is_spent() { Err(OutOfMemory) } else { Ok(()) }
}
