//! The variables of running functions.
//!
//! Where a frame cannot be read as it is (`start/frames.rs`), it shows its variables through `f_locals`.
//! Before Python 3.13 that leaves a snapshot in the frame that holds them too. The snapshot is read
//! and emptied again, unless it belongs to the program.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::ask::object::count_of;

/// A flag of a function's code: its variables are not in a dict.
const OPTIMISED: i64 = 1;
/// The reference count of a snapshot that nobody else uses: the frame's reference, and ours.
const UNWANTED: u32 = 2;

/// Returns what the variables of a running frame hold.
///
/// `is_looked_at`: a function that the frame called refers to the frame. It may be a debugger's;
/// then the interpreter writes the snapshot back into the frame afterwards, and an empty one would
/// delete all variables. `view` is the type of `f_locals` if it is no dict.
pub(crate) fn read<'py>(
    frame: &Bound<'py, PyAny>,
    code: &Bound<'py, PyAny>,
    is_looked_at: bool,
    view: &Bound<'py, PyType>,
    namespaces: &HashSet<usize>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = frame.py();
    let flags: i64 = code.getattr(intern!(py, "co_flags"))?.extract()?;
    let locals = frame.getattr(intern!(py, "f_locals"))?;
    let is_view = locals.get_type().is(view) && !view.is(py.get_type::<PyDict>());
    let mut held = Vec::new();
    if flags & OPTIMISED == 0 {
        // The body of a module or a class: its variables are in a real mapping, whatever that is.
        let globals = frame.getattr(intern!(py, "f_globals"))?;
        if !locals.is(&globals) && !is_view {
            held.push(locals.clone());
        }
        if !namespaces.contains(&globals.as_ptr().addr()) {
            held.push(globals);
        }
    }
    if is_view {
        // It leaves nothing behind.
        for value in locals.call_method0(intern!(py, "values"))?.try_iter()? {
            held.push(value?);
        }
    } else if flags & OPTIMISED != 0 {
        let snapshot = locals.cast_into::<PyDict>()?;
        held.extend(snapshot.values().iter());
        if is_looked_at || count_of(snapshot.as_ptr()) != UNWANTED {
            held.push(snapshot.into_any());
        } else {
            snapshot.clear();
        }
    }
    Ok(held)
}

/// Returns the frames among some variables, and in tuples among them, except the frame that has the
/// variables.
pub(crate) fn frames_in(variables: &[Bound<'_, PyAny>], of: &Bound<'_, PyAny>) -> Vec<usize> {
    let mut found = Vec::new();
    let mut note = |object: &Bound<'_, PyAny>| {
        if object.get_type().is(of.get_type()) && !object.is(of) {
            found.push(object.as_ptr().addr());
        }
    };
    for variable in variables {
        note(variable);
        if let Ok(tuple) = variable.cast_exact::<PyTuple>() {
            tuple.iter().for_each(|one| note(&one));
        }
    }
    found
}
