//! The collector's own lists of objects, read in place.
//!
//! Each generation is a ring of links in front of the objects, as frozen objects are (`frozen.rs`). To
//! follow the links counts no reference up and down and needs no list of all objects, which
//! `gc.get_objects` would make: its objects are those of the three generations, youngest first.
//!
//! The heads of the rings follow each other in the interpreter's state, each with the threshold and
//! the count of its generation. An object that was just made is the last of the youngest generation,
//! so the head comes after it. The heads are used only if their thresholds and counts are those that
//! the collector reports and if their links lead back to them, and only in Python 3.10 to 3.13.

use std::ptr::with_exposed_provenance;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::interpreter::Interpreter;
use super::links::{Header, is_tracked, next, previous};
use super::lists::empty;
use super::prefetch::prefetch;
use super::resting::Resting;

/// The head of a generation's ring, as the interpreter has it.
#[repr(C)]
struct Head {
    links: Header,
    threshold: i32,
    count: i32,
}

/// How far behind its links an object has its type.
const TYPE_AT: usize = size_of::<Header>() + size_of::<usize>();

/// The lists of objects that the collector has, youngest first.
pub(crate) struct Generations([usize; 3]);

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
            // SAFETY: all heads are parts of the interpreter's state, which lives as long as it does.
            let Head { threshold: has, count: counted, .. } =
                unsafe { with_exposed_provenance::<Head>(head).read() };
            has == threshold
                && count.is_none_or(|count| count == counted)
                && previous(next(head)) == head
                && next(previous(head)) == head
        };
        let all = heads.into_iter().zip(thresholds).zip(counts);
        Ok(all.into_iter().all(is_right).then_some(Generations(heads)))
    }

    /// Calls `show` with every object. It must not change the lists, so it makes no object.
    pub(crate) fn each(&self, mut show: impl FnMut(*mut PyObject)) {
        for head in self.0 {
            let mut at = next(head);
            while at != head {
                assert_ne!(at, 0, "objects in a list are linked");
                let object = with_exposed_provenance::<PyObject>(at + size_of::<Header>());
                at = next(at);
                prefetch(with_exposed_provenance::<u8>(at + TYPE_AT));
                show(object.cast_mut());
            }
        }
    }
}
