//! Objects that `gc.freeze` has hidden from the collector: finding them, and the objects of a type among them.
//!
//! Where the collector's lists can be read in place, they are read like the others (`start/collector.rs`). Elsewhere
//! most of them are found by the walk, because something refers to them. A frozen cycle that
//! nothing refers to is not, and no function of the interpreter lists it. But frozen objects form a
//! linked ring: the links stand in front of each object, and any one of them leads to all others.
//!
//! This holds for Python 3.10 to 3.14, and the ring is read only there. One member of the ring is
//! no object: the ring's head, in the interpreter's state. Where an object has its reference count,
//! the head has two zeros, and no live object has a count of zero. The ring must have as many
//! objects as the collector reports; otherwise it is not used.
//!
//! Python 3.12 adds immortal objects to the ring at every collection. Nobody has frozen those.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ask::object::{class_of, count_of, is_below, is_immortal, object};
use crate::safety::own_references::list_of;
use crate::start::collector::{Collector, Links, Matching, is_tracked, next};

/// How many objects are tried as a start. An object that another thread is collecting is in no list
/// either.
pub(crate) const TRIED_MOST: usize = 8;

/// Returns how many objects are frozen, without immortal ones. `count` is what the collector
/// reports; `member` is an object that may be in the ring.
#[pyfunction]
pub fn frozen_mortals(count: usize, member: &Bound<'_, PyAny>) -> usize {
    let ring = from_any([member.as_ptr().expose_provenance()].into_iter(), count);
    ring.map_or(count, |ring| ring.into_iter().filter(|one| is_mortal(*one)).count())
}

/// Returns the objects of a type, or of one below it. Where frozen objects cannot be read like the others, any of
/// `tried` that is frozen leads to all of them.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a list")]
pub fn objects_of_type<'py>(
    interpreter: &Bound<'py, PyAny>,
    class_: &Bound<'py, PyType>,
    tried: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = class_.py();
    let collector = Collector::new(py, interpreter.extract()?)?;
    let is_it = |class| is_below(class, class_.as_type_ptr());
    let Matching { mut found, all: mut listed, has_frozen } = collector.find(py, is_it)?;
    if !has_frozen && collector.interpreter.finds_frozen {
        listed.sort_unstable();
        let count = collector.interpreter.frozen_count()?;
        let tried = tried.iter().map(|one| one.as_ptr().expose_provenance());
        let unlisted = tried.filter(|address| listed.binary_search(address).is_err());
        let frozen = from_any(unlisted, count).unwrap_or_default();
        let frozen = frozen.into_iter().map(|address| object(py, address));
        found.extend(frozen.filter(|one| is_it(class_of(one.as_ptr()))));
    }
    list_of(py, found)
}

/// Returns every frozen object, of which there are `count`, or `None` if no ring of so many has one of the first
/// objects of `tried` that the collector tracks. Those must not be in a list of the collector.
pub(crate) fn from_any(tried: impl Iterator<Item = usize>, count: usize) -> Option<Vec<usize>> {
    let mut tracked = tried.filter(|object| is_tracked(*object)).take(TRIED_MOST + 1);
    tracked.find_map(|object| ring(object, count))
}

/// Returns whether the object at an address is not immortal.
pub(crate) fn is_mortal(address: usize) -> bool {
    !is_immortal(count_of(with_exposed_provenance_mut(address)))
}

/// Returns the objects of the ring in which a tracked object is, that object last, or `None` if they are
/// not as many as `count`.
fn ring(first: usize, count: usize) -> Option<Vec<usize>> {
    let size = size_of::<Links>();
    let mut objects = Vec::new();
    objects.try_reserve(count).ok()?;
    let mut at = first;
    for _ in 0..=count {
        // `at` is an object that the collector tracks, or the ring's head: links stand in front of the
        // one and are the other.
        let links = next(at - size);
        if links == 0 {
            return None;
        }
        at = links + size;
        // SAFETY: behind links stands an object, which begins with its count; behind the head
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
