//! Out of memory while the heap is examined: a `MemoryError` of Python, never the end of the process.
//!
//! Tables that grow with the heap ask before they grow. Everything else is counted in a
//! [`Reserve`] that is taken before.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::TryReserveError;
use std::ptr::slice_from_raw_parts_mut;

use crate::safety::huge_pages::Reserve;

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

/// Takes a reserve for tables whose size does not depend on the heap, and for so many bytes more.
pub(crate) fn reserve(bytes: usize) -> Result<Reserve, OutOfMemory> {
    Reserve::take(LITTLE.saturating_add(bytes)).ok_or(OutOfMemory)
}

/// Takes a reserve for the analysis of a graph: its documentation counts 117 bytes for a node of the
/// worst graph with four references each; paths and what becomes of them come on top.
pub(crate) fn reserve_for(nodes: usize, edges: usize) -> Result<Reserve, OutOfMemory> {
    reserve(nodes.saturating_mul(192).saturating_add(edges.saturating_mul(16)))
}

/// Returns so many zeros. A large table of them is fresh memory that nobody has touched.
pub(crate) fn zeroed<T: Number>(len: usize) -> Result<Vec<T>, OutOfMemory> {
    let Ok(layout) = Layout::array::<T>(len) else { return Err(OutOfMemory) };
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        return Err(OutOfMemory);
    }
    let numbers = slice_from_raw_parts_mut(memory, len);
    // SAFETY: it was allocated with this layout by the allocator of boxes, and a number of zeros is
    // 0.
    Ok(unsafe { Box::from_raw(numbers) }.into_vec())
}

/// A number that is 0 if all its bytes are.
pub(crate) trait Number: Copy {}
impl Number for u32 {}
impl Number for i32 {}

/// Returns an error if a reserve had to be given back.
pub(crate) fn check(reserve: &Reserve) -> Result<(), OutOfMemory> {
    if reserve.is_spent() { Err(OutOfMemory) } else { Ok(()) }
}
