//! The collector's own lists of objects, read in place.
//!
//! Each generation is a ring of links in front of the objects. To follow the links counts no reference
//! up and down and needs no list of all objects, which `gc.get_objects` would make: its objects are
//! those of the three generations, youngest first. Objects that `gc.freeze` has hidden are in a fourth
//! ring, which no function of the interpreter lists.
//!
//! The heads of the rings follow each other in the interpreter's state, each with the threshold and
//! the count of its generation. An object that was just made is the last of the youngest generation,
//! so the head comes after it. The heads are used only if their thresholds and counts are those that
//! the collector reports and if their links lead back to them, and only in Python 3.10 to 3.13. Between
//! the oldest generation and the frozen objects stands a pointer to the youngest one's head; that ring
//! is used only if the pointer is right. How many objects are frozen is not asked: the collector counts them one by
//! one, which takes as long as to read them.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::ask::prefetch::prefetch;
use crate::safety::collector_off::Resting;
use crate::safety::python_lists::empty;
use crate::start::interpreter::Interpreter;
use crate::start::links::{FLAGS, Header, is_tracked, next, previous};

/// The head of a generation's ring, as the interpreter has it.
#[repr(C)]
struct Head {
    links: Header,
    threshold: i32,
    count: i32,
}

/// How far behind its links an object has its type.
const TYPE_AT: usize = size_of::<Header>() + size_of::<usize>();

/// The heads of the rings, as they follow each other.
#[repr(C)]
struct Heads {
    generations: [Head; 3],
    youngest: usize,
    frozen: Head,
}

/// The lists of objects that the collector has.
pub(crate) struct Generations {
    /// The heads of the generations, youngest first.
    heads: [usize; 3],
    /// The head of the frozen objects, if it is where it was expected.
    frozen: Option<usize>,
}

impl Generations {
    /// Finds the lists. Returns `None` if they are not as expected.
    pub(crate) fn find(py: Python<'_>, interpreter: &Interpreter<'_>) -> PyResult<Option<Self>> {
        // A program may have put functions of its own in their place before the package was imported.
        let are_own = [&interpreter.get_threshold, &interpreter.get_count].into_iter().all(|one| {
            // SAFETY: it is alive, and this thread is attached.
            (unsafe { ffi::PyCFunction_Check(one.as_ptr()) }) != 0
        });
        if !interpreter.knows_generations || !are_own {
            return Ok(None);
        }
        // A collection would move the new object into an older generation.
        let _resting = Resting::begin(py);
        let thresholds: [i32; 3] =
            interpreter.get_threshold.call0()?.extract::<(_, _, _)>()?.into();
        let newest = empty(py)?;
        let address = newest.as_ptr().expose_provenance();
        if !is_tracked(address) {
            return Ok(None);
        }
        let first = next(address - size_of::<Header>());
        let heads = [0, 1, 2].map(|generation| first + generation * size_of::<Head>());
        // The youngest one's count changes with every object.
        let counts: (i32, i32, i32) = interpreter.get_count.call0()?.extract()?;
        let counts = [None, Some(counts.1), Some(counts.2)];
        let is_right = |((head, threshold), count): ((usize, i32), Option<i32>)| {
            let Head { threshold: has, count: counted, .. } = head_at(head);
            has == threshold && count.is_none_or(|count| count == counted) && is_ring(head)
        };
        let all = heads.into_iter().zip(thresholds).zip(counts);
        Ok(all.into_iter().all(is_right).then(|| Generations { heads, frozen: frozen(first) }))
    }

    /// Calls `show` with every object that is not frozen. It must not change the lists, so it makes no
    /// object.
    pub(crate) fn each(&self, mut show: impl FnMut(*mut PyObject)) {
        for head in self.heads {
            follow(head, &mut show);
        }
    }

    /// Calls `show` with every frozen object, and makes no object either. Returns whether they could be read.
    pub(crate) fn each_frozen(&self, show: impl FnMut(*mut PyObject)) -> bool {
        if let Some(head) = self.frozen {
            follow(head, show);
        }
        self.frozen.is_some()
    }
}

/// Returns how many objects are frozen, as the collector reports it. Returns `None` where the frozen objects can be
/// read: to read them counts them.
pub(crate) fn reported_frozen(
    interpreter: &Interpreter<'_>,
    generations: Option<&Generations>,
) -> PyResult<Option<usize>> {
    if generations.is_some_and(|generations| generations.frozen.is_some()) {
        return Ok(None);
    }
    interpreter.get_freeze_count.call0()?.extract().map(Some)
}

/// Returns the head of the frozen objects, given that of the youngest generation, or `None` if it does not
/// look as expected.
fn frozen(first: usize) -> Option<usize> {
    // SAFETY: it is a part of the interpreter's state, which is much longer and lives as long as the
    // interpreter does.
    let youngest =
        unsafe { with_exposed_provenance::<usize>(first + offset_of!(Heads, youngest)).read() };
    let head = first + offset_of!(Heads, frozen);
    let Head { threshold, count, .. } = head_at(head);
    (youngest == first && threshold == 0 && count == 0 && is_ring(head)).then_some(head)
}

fn head_at(head: usize) -> Head {
    // SAFETY: all heads are parts of the interpreter's state, which lives as long as it does.
    unsafe { with_exposed_provenance::<Head>(head).read() }
}

/// Returns whether the links at a head lead back to it.
fn is_ring(head: usize) -> bool {
    let links = head_at(head).links;
    links.next & !FLAGS != 0
        && links.previous & !FLAGS != 0
        && previous(next(head)) == head
        && next(previous(head)) == head
}

/// Calls `show` with the objects of a ring.
fn follow(head: usize, mut show: impl FnMut(*mut PyObject)) {
    let mut at = next(head);
    while at != head {
        assert_ne!(at, 0, "objects in a list are linked");
        let object = with_exposed_provenance::<PyObject>(at + size_of::<Header>());
        at = next(at);
        prefetch(with_exposed_provenance::<u8>(at + TYPE_AT));
        show(object.cast_mut());
    }
}
