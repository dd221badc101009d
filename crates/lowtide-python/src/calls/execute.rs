//! The function that a debugger calls (`lowtide why PID --inject`), in a program that may not have imported this module.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::{fs, thread};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Has a thread execute a file of Python, with names of its own, once it has the interpreter's lock. Returns 0 if the
/// thread was started.
///
/// # Safety
/// The path is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lowtide_execute(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let text =
        fs::read(OsStr::from_bytes(path.to_bytes())).ok().and_then(|it| CString::new(it).ok());
    let Some(text) = text else { return 1 };
    // SAFETY: it may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return 2;
    }
    let execute = move || {
        Python::try_attach(|py| {
            let names = PyDict::new(py);
            // What the text does wrong is nobody's error in the program.
            let _done = py.run(&text, Some(&names), None);
        });
    };
    c_int::from(thread::Builder::new().name("lowtide-why".to_owned()).spawn(execute).is_err())
}
