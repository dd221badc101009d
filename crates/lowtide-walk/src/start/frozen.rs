//! Finds the objects that `gc.freeze` has hidden from the collector, where they cannot be read like the
//! others (`start/collector_lists.rs`).
//!
//! Most of them are found by the walk, because something refers to them. A frozen cycle that
//! nothing refers to is not, and no function of the interpreter lists it. But frozen objects form a
//! linked ring: the links stand in front of each object, and any one of them leads to all others.
//!
//! This holds for Python 3.10 to 3.14, and the ring is read only there. One member of the ring is
//! no object: the ring's head, in the interpreter's state. Where an object has its reference count,
//! the head has two zeros, and no live object has a count of zero. The ring must have as many
//! objects as the collector reports; otherwise it is not used.
//!
//! Python 3.12 adds immortal objects to the ring at every collection. Nobody has frozen those.

use std::ptr::with_exposed_provenance;

use lowtide_heap::Node;
use pyo3::prelude::*;

use crate::ask::object;
use crate::start::links::{FLAGS, Header, is_tracked};
use crate::walk::listing::List;
use crate::walk::walked::Walked;

/// How many objects are tried as a start. An object that another thread is collecting is in no list
/// either.
const TRIED_MOST: usize = 8;

/// Returns how many objects are frozen, without immortal ones. `count` is what the collector
/// reports; `member` is an object that may be in the ring.
#[pyfunction]
pub fn frozen_mortals(count: usize, member: &Bound<'_, PyAny>) -> usize {
    let member = member.as_ptr().expose_provenance();
    let ring = if is_tracked(member) { ring(member, count) } else { None };
    ring.map_or(count, |ring| mortals(&ring))
}

/// Returns how many of some objects are not immortal.
pub(crate) fn mortals(objects: &[usize]) -> usize {
    objects.iter().filter(|object| !is_immortal(**object)).count()
}

/// Returns every frozen object, or `None` if the ring does not look as expected. `immortal` is an
/// object that may be in the ring.
pub(crate) fn find(walked: &Walked, immortal: usize) -> Option<Vec<usize>> {
    let nodes = (0..walked.addresses.len() as u32).map(Node);
    let tried = nodes.filter(|node| is_unlisted(walked, *node)).take(TRIED_MOST);
    let tried = tried.map(|node| walked.addresses[node.index()]);
    from_any(tried.chain([immortal]), walked.frozen_count)
}

/// Returns every frozen object, of which there are `count`, or `None` if no ring of so many has one of the first
/// objects of `tried` that the collector tracks. Those must not be in a list of the collector.
pub(crate) fn from_any(tried: impl Iterator<Item = usize>, count: usize) -> Option<Vec<usize>> {
    let mut tracked = tried.filter(|object| is_tracked(*object)).take(TRIED_MOST + 1);
    tracked.find_map(|object| ring(object, count))
}

/// Marks the nodes that are frozen: the collector tracks them, and does not list them.
pub(crate) fn mark(walked: &mut Walked) {
    for (address, list) in walked.addresses.iter().zip(&mut walked.lists) {
        if *list == List::Unknown && is_tracked(*address) && !is_immortal(*address) {
            *list = List::Frozen;
        }
    }
}

/// Returns whether the collector tracks an object and does not list it.
fn is_unlisted(walked: &Walked, node: Node) -> bool {
    walked.lists[node.index()] == List::Unknown && is_tracked(walked.addresses[node.index()])
}

fn is_immortal(address: usize) -> bool {
    object::is_immortal(object::count_of(std::ptr::with_exposed_provenance_mut(address)))
}

/// Returns the objects of the ring in which a tracked object is, that object last, or `None` if they are
/// not as many as `count`.
fn ring(first: usize, count: usize) -> Option<Vec<usize>> {
    let size = size_of::<Header>();
    let mut objects = Vec::new();
    objects.try_reserve(count).ok()?;
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
    // One round was made, and all members but the head are objects.
    (at == first && objects.len() == count).then_some(objects)
}
