//! What `gc.freeze` has taken out of the collector's lists.
//!
//! Most of it is found by walking: somebody refers to it. A frozen cycle that nobody refers to any
//! more is not, and no function of the interpreter lists it. But frozen objects hang in a ring, each
//! with its neighbours in front of it, and any one of them leads to all others.
//!
//! That is how it is in Python 3.10 to 3.13, and only there it is done. One member of the ring is no
//! object: the ring's own head, in the interpreter's state. Where an object has its count, the head has
//! two zeros, and no live object has a count of zero. The ring has to have as many objects as the
//! collector says; where it has not, nothing is believed of it.

use std::ptr::with_exposed_provenance;

use lowtide_heap::Node;
use pyo3::ffi;

use super::walk::Walked;

/// What stands in front of an object that the collector knows.
#[repr(C)]
struct Header {
    next: usize,
    previous: usize,
}

/// Bits of an address that are used for something else.
const FLAGS: usize = 3;

/// Every frozen object. `None` where the ring is not as we think.
pub(crate) fn find(walked: &Walked) -> Option<Vec<usize>> {
    let mut nodes = (0..walked.addresses.len() as u32).map(Node);
    let first = nodes.find(|node| is_frozen(walked, *node))?;
    ring(walked.addresses[first.index()], walked.frozen_count)
}

/// Whether the collector tracks an object and does not list it.
pub(crate) fn is_frozen(walked: &Walked, node: Node) -> bool {
    let address = walked.addresses[node.index()];
    if address == 0 || walked.listed[node.index()] {
        return false;
    }
    let object = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the object is alive; one that is not collected at all is not tracked.
    (unsafe { ffi::PyObject_GC_IsTracked(object) }) != 0
}

fn ring(first: usize, count: usize) -> Option<Vec<usize>> {
    let size = size_of::<Header>();
    let mut objects = Vec::with_capacity(count);
    let mut at = first;
    for _ in 0..=count {
        let header = with_exposed_provenance::<Header>(at - size);
        // SAFETY: `at` is an object that the collector tracks, or the ring's head: a header stands
        // in front of the one and is the other.
        let next = unsafe { (*header).next } & !FLAGS;
        if next == 0 {
            return None;
        }
        at = next + size;
        // SAFETY: behind a header stands an object, which begins with its count; behind the head
        // stand two numbers of the interpreter's state.
        let count = unsafe { with_exposed_provenance::<u64>(at).read() };
        if count != 0 {
            objects.push(at);
        }
        if at == first {
            break;
        }
    }
    // One round, and all of them but the head are objects.
    (at == first && objects.len() == count).then_some(objects)
}
