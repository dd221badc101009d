//! Reads the variables of a frame where they are.
//!
//! Up to Python 3.12 `f_locals` of a function is a snapshot, which the frame keeps. Each time that it
//! is read it is brought up to date, and what the function has dropped meanwhile is freed: a question
//! would free the memory that it is about. So the snapshot is looked at as it is, and variables are
//! read from the frame itself. The layout of frames is known for Python 3.10 to 3.14.
//!
//! From 3.13 on there is no snapshot, and `f_locals` shows the variables. It does not show the cells
//! of those that closures share, nor, while a comprehension runs in the body of a class, the names
//! of the class. In 3.14 the low bits of a variable are no part of the address: they tell that the
//! variable has borrowed its reference from the caller's.
//!
//! Where the layout is not known, a frame shows its variables through `f_locals`.
//!
//! A frame also has values in use, such as the iterator of a `for` loop, on a stack. Its height is
//! known while the frame waits for another frame; while it waits for native code it is not, and
//! behind its end are addresses of what was there before. So the stack is never followed. It only
//! tells which frame has an object that is known to be alive and to have a reference from somewhere
//! (up to Python 3.14); where the height is not known, only an iterator, which is hardly ever
//! anywhere else.

use std::collections::HashSet;

use pyo3::ffi::{self, PyObject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::ask::object::{class_of, field};
use crate::ask::types::is_of_the_program;

/// A flag of a function's code: its variables are not in a dict.
const OPTIMISED: i64 = 1;

/// Where a frame has what, in bytes.
#[derive(Clone, Copy)]
struct Layout {
    /// The pointer to the inner frame, in the frame's object; `None` if there is no inner one.
    inner: Option<usize>,
    code: usize,
    /// The names of the body of a module or class; in a function, the snapshot.
    locals: usize,
    /// The first of the variables.
    values: usize,
    /// Whether a variable that closures share has a place of its own although it is an argument.
    cells_apart: bool,
    /// Whether `f_locals` is a snapshot.
    has_snapshot: bool,
    /// The number of variables and values on the stack, while the frame waits for another.
    height: Option<usize>,
}

/// Bits of a pointer on the stack that are no part of the address.
const FLAGS: usize = 7;
/// The flag of a variable whose reference is not counted.
const BORROWED: usize = 1;
/// The flags of a number in place of a pointer.
const NUMBER: usize = 3;

/// Returns the layout of this interpreter's frames, if it is known.
fn layout(py: Python<'_>) -> Option<Layout> {
    if size_of::<usize>() != 8 {
        return None;
    }
    let version = py.version_info();
    let (inner, code, locals, values) = match (version.major, version.minor) {
        (3, 10) => (None, 32, 56, 352),
        (3, 11) => (Some(24), 32, 24, 72),
        (3, 12 | 13) => (Some(24), 0, 40, 72),
        (3, 14) => (Some(24), 0, 40, 80),
        _ => return None,
    };
    let (cells_apart, has_snapshot) = (version.minor == 10, version.minor <= 12);
    let height = (11..=13).contains(&version.minor).then_some(64);
    Some(Layout { inner, code, locals, values, cells_apart, has_snapshot, height })
}

/// The addresses on the stack of a frame.
pub(crate) struct Stack {
    pub(crate) objects: Vec<usize>,
    /// Whether all of them are of values in use.
    pub(crate) is_exact: bool,
}

/// A frame.
pub(crate) struct Frame<'py> {
    code: Bound<'py, PyAny>,
    layout: Layout,
    /// Where its parts are.
    base: *const u8,
}

/// A variable: its name, its value or the cell of it, and whether closures may share it.
pub(crate) struct Variable<'py> {
    name: Bound<'py, PyString>,
    pub(crate) value: Bound<'py, PyAny>,
    is_shared: bool,
    /// Whether its reference is not counted.
    pub(crate) is_borrowed: bool,
}

impl<'py> Frame<'py> {
    /// Returns whether its variables are not in a mapping.
    pub(crate) fn is_of_function(&self) -> PyResult<bool> {
        let flags: i64 = self.code.getattr(intern!(self.code.py(), "co_flags"))?.extract()?;
        Ok(flags & OPTIMISED != 0)
    }

    /// Returns a frame, or `None` if the layout is not known.
    pub(crate) fn new(frame: &Bound<'py, PyAny>) -> PyResult<Option<Frame<'py>>> {
        let py = frame.py();
        let Some(layout) = layout(py) else { return Ok(None) };
        let is_frame =
            !is_of_the_program(class_of(frame.as_ptr())) && frame.get_type().name()? == "frame";
        if !is_frame {
            return Ok(None);
        }
        let code = frame.getattr(intern!(py, "f_code"))?;
        let object = frame.as_ptr().cast::<u8>().cast_const();
        let base = match layout.inner {
            // SAFETY: it is a frame, and has this pointer there (`layout`).
            Some(at) => unsafe { field(object, at) },
            None => object,
        };
        let found = Frame { code, layout, base };
        // That it has its own code where the layout says is a check of the layout.
        let is_right = !base.is_null()
            && found.pointer(layout.code).addr() & !FLAGS == found.code.as_ptr().addr();
        Ok(is_right.then_some(found))
    }

    fn pointer(&self, at: usize) -> *mut PyObject {
        // SAFETY: the offset is one of the layout, or of a variable or a value that the code has.
        unsafe { field(self.base, at) }
    }

    fn object(&self, at: usize) -> Option<Bound<'py, PyAny>> {
        let place = self.pointer(at);
        if place.addr() & NUMBER == NUMBER {
            return None;
        }
        let object = place.map_addr(|address| address & !FLAGS);
        // SAFETY: what a frame has is alive or null, and this thread is attached.
        unsafe { Bound::from_borrowed_ptr_or_opt(self.code.py(), object) }
    }

    /// Returns the mapping of the variables as it is, if there is one; in a function, the snapshot.
    pub(crate) fn locals(&self) -> Option<Bound<'py, PyAny>> {
        self.object(self.layout.locals)
    }

    /// Returns the addresses on its stack. If its height is not known, some of them are of objects
    /// that have ended.
    pub(crate) fn stack(&self) -> PyResult<Stack> {
        let py = self.code.py();
        let size: usize = self.code.getattr(intern!(py, "co_stacksize"))?.extract()?;
        let variables = self.names()?.len();
        let height = self.height().and_then(|height| height.checked_sub(variables));
        let height = height.filter(|height| *height <= size);
        let begin = self.layout.values + variables * size_of::<usize>();
        // The stack is part of the frame, at its full size.
        let places = (0..height.unwrap_or(size)).map(|at| begin + at * size_of::<usize>());
        let objects = places.map(|at| self.pointer(at).addr() & !FLAGS).filter(|at| *at != 0);
        Ok(Stack { objects: objects.collect(), is_exact: height.is_some() })
    }

    /// Returns how many variables and values there are, if that is known.
    fn height(&self) -> Option<usize> {
        let at = self.layout.height?;
        // SAFETY: the inner frame has a number there (`layout`).
        let height: i32 = unsafe { field(self.base, at) };
        usize::try_from(height).ok()
    }

    /// Returns the names of all variables in order, and whether closures may share them.
    fn names(&self) -> PyResult<Vec<(Bound<'py, PyAny>, bool)>> {
        let names = |attribute: &Bound<'py, PyString>| {
            Ok::<_, PyErr>(self.code.getattr(attribute)?.cast_into::<PyTuple>()?)
        };
        let py = self.code.py();
        let locals = names(intern!(py, "co_varnames"))?;
        let cells = names(intern!(py, "co_cellvars"))?;
        let mut shared = HashSet::new();
        let mut all: Vec<(Bound<'py, PyAny>, bool)> = Vec::new();
        for name in &cells {
            shared.insert(name.extract::<String>()?);
        }
        for name in &locals {
            let is_shared = !self.layout.cells_apart && shared.remove(name.extract::<&str>()?);
            all.push((name, is_shared));
        }
        for name in &cells {
            if shared.contains(name.extract::<&str>()?) {
                all.push((name, true));
            }
        }
        all.extend(names(intern!(py, "co_freevars"))?.iter().map(|name| (name, true)));
        Ok(all)
    }

    /// Returns the variables that are not in a mapping. The body of a module or class has some while a
    /// comprehension runs in it.
    pub(crate) fn variables(&self) -> PyResult<Vec<Variable<'py>>> {
        let mut found = Vec::new();
        for (at, (name, is_shared)) in self.names()?.into_iter().enumerate() {
            let at = self.layout.values + at * size_of::<usize>();
            if let Some(value) = self.object(at) {
                let is_borrowed = self.pointer(at).addr() & BORROWED != 0;
                found.push(Variable { name: name.cast_into()?, value, is_shared, is_borrowed });
            }
        }
        Ok(found)
    }
}

/// Returns the variables of a frame that are not in a mapping, by name; `None` if `f_locals` may be
/// read instead, or must be because the layout is not known.
#[pyfunction]
pub fn frame_variables<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = frame.py();
    let Some(frame) = Frame::new(frame)? else { return Ok(None) };
    if !frame.layout.has_snapshot && frame.is_of_function()? {
        return Ok(None);
    }
    // SAFETY: this thread is attached.
    let found = unsafe { ffi::PyDict_New() };
    // SAFETY: it is new and ours, or null with an exception.
    let found = unsafe { Bound::from_owned_ptr_or_err(py, found) }?.cast_into::<PyDict>()?;
    for Variable { name, value, is_shared, .. } in frame.variables()? {
        if !is_shared || value.get_type().name()? != "cell" {
            found.set_item(name, value)?;
        } else if let Ok(contents) = value.getattr(intern!(py, "cell_contents")) {
            found.set_item(name, contents)?;
        }
    }
    Ok(Some(found))
}

/// Returns the mapping with the variables of a frame as it is: the names of the body of a module or
/// class, or the snapshot that a function's frame keeps. `None` if there is none.
#[pyfunction]
pub fn frame_locals<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(Frame::new(frame)?.and_then(|frame| frame.locals()))
}

/// Returns what the variables of a running frame hold, as `f_locals` shows them: that of a function is a
/// view of the type `view`, which leaves nothing behind, where the layout of frames is not known.
pub(crate) fn read_locals<'py>(
    frame: &Bound<'py, PyAny>,
    view: &Bound<'py, PyType>,
    namespaces: &HashSet<usize>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = frame.py();
    let locals = frame.getattr(intern!(py, "f_locals"))?;
    let globals = frame.getattr(intern!(py, "f_globals"))?;
    if locals.get_type().is(view) && !view.is(py.get_type::<PyDict>()) {
        return locals.call_method0(intern!(py, "values"))?.try_iter()?.collect();
    }
    // The body of a module or a class: its variables are in a real mapping, whatever that is.
    let is_module = locals.is(&globals);
    let mut held = Vec::new();
    held.extend((!is_module).then_some(locals));
    held.extend((!namespaces.contains(&globals.as_ptr().addr())).then_some(globals));
    Ok(held)
}
