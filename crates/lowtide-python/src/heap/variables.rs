//! What running functions have in their variables.
//!
//! A running frame shows them to nobody but `f_locals`, which up to Python 3.12 leaves a snapshot in the
//! frame that holds them too. We take out what is in it and empty it again; unless it is the program's.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::object::count_of;

/// The code of a function: its variables are not a dict.
const OPTIMISED: i64 = 1;
/// References to a snapshot that nobody wants: the frame's, and ours.
const UNWANTED: u32 = 2;

/// What the variables of a running frame hold.
///
/// `is_looked_at`: a function that it called has the frame itself. That may be a debugger's, and behind
/// it the interpreter will write the snapshot back into the frame. An empty one would end all variables.
/// `view` is what `f_locals` gives where it is no dict.
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

/// The frames among some variables, or in a tuple of theirs, but not the frame whose they are.
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
