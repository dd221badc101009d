//! Calls into Python that the end of the interpreter may overtake.
//!
//! Before Python 3.14, a thread that needs the interpreter's lock once the interpreter ends is ended by
//! `pthread_exit`, which unwinds its stack. Rust cannot be unwound so: the process aborts, or references
//! are dropped without the lock. So such a thread stays where it is for ever, as from 3.14 on. pyo3 does
//! that where a thread takes the lock itself; a call into Python may take it too.

use std::mem::forget;
use std::ptr::null_mut;
use std::thread;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

unsafe extern "C-unwind" {
    /// pyo3 declares it as a function that never unwinds.
    fn PyObject_Call(
        callable: *mut PyObject,
        arguments: *mut PyObject,
        named: *mut PyObject,
    ) -> *mut PyObject;
}

/// Stops its thread when it is dropped: only unwinding drops it.
struct Stays;

impl Drop for Stays {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Calls a Python function. If the interpreter ends meanwhile, this never returns.
pub fn call_function<'py, A>(
    function: &Bound<'py, PyAny>,
    arguments: A,
) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
    PyErr: From<A::Error>,
{
    let py = function.py();
    let arguments = arguments.into_pyobject(py)?;
    let stays = Stays;
    // SAFETY: both are alive, and this thread is attached.
    let returned = unsafe { PyObject_Call(function.as_ptr(), arguments.as_ptr(), null_mut()) };
    forget(stays);
    // SAFETY: it is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, returned) }
}

/// Calls a method without arguments, like [`call_function`].
pub fn call_method<'py>(object: &Bound<'py, PyAny>, method: &str) -> PyResult<Bound<'py, PyAny>> {
    call_function(&object.getattr(method)?, ())
}
