//! Arrays of numpy. They take no part in garbage collection, so no traverse slot shows what they
//! refer to: the object whose memory they show (`base`), and the elements of an array of objects.
//!
//! Both are read where numpy has them. That is part of numpy's binary interface: extensions that
//! were compiled with numpy 1.7 read the same fields of numpy 2. Whether it is so is checked with an
//! array whose base is known.

use pyo3::ffi::{PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::object::field;

/// Offsets in an array, in bytes.
const DATA: usize = 16;
const DIMENSIONS: usize = 24;
const SHAPE: usize = 32;
const BASE: usize = 48;
const DTYPE: usize = 56;
const FLAGS: usize = 64;
/// The offset of a number in a dtype, and the number of objects.
const TYPE_NUMBER: usize = 28;
const OBJECTS: i32 = 17;
/// The flag of an array that has its elements itself.
const OWNS_DATA: i32 = 4;
/// numpy allows 64.
const DIMENSIONS_MOST: usize = 64;

/// The arrays of an imported numpy, as Python reports it.
#[derive(FromPyObject)]
pub(crate) struct Arrays<'py> {
    class_: Bound<'py, PyType>,
    /// An array, and the array whose memory it shows.
    view: Bound<'py, PyAny>,
    base: Bound<'py, PyAny>,
}

impl Arrays<'_> {
    /// Returns the type of arrays, or `None` if they do not have their base where it is expected.
    pub(crate) fn class(&self) -> Option<*mut PyTypeObject> {
        let is_right = base(self.view.as_ptr()) == self.base.as_ptr();
        (is_right && size_of::<usize>() == 8).then(|| self.class_.as_type_ptr())
    }
}

fn read<T: Copy>(at: *const u8, offset: usize) -> T {
    // SAFETY: an array or its dtype has a field of this type there, as the callers say.
    unsafe { field(at, offset) }
}

/// Returns the object whose memory an array shows; null if it has its own.
pub(crate) fn base(array: *mut PyObject) -> *mut PyObject {
    read(array.cast::<u8>(), BASE)
}

/// Returns the elements of an array of objects that has them itself; some may be null.
pub(crate) fn elements<'a>(array: *mut PyObject) -> &'a [*mut PyObject] {
    let array = array.cast::<u8>().cast_const();
    let dtype: *const u8 = read(array, DTYPE);
    let data: *const *mut PyObject = read(array, DATA);
    let owns = read::<i32>(array, FLAGS) & OWNS_DATA != 0;
    if !owns || data.is_null() || dtype.is_null() || read::<i32>(dtype, TYPE_NUMBER) != OBJECTS {
        return &[];
    }
    let dimensions = usize::try_from(read::<i32>(array, DIMENSIONS)).unwrap_or(0);
    let shape: *const u8 = read(array, SHAPE);
    let lengths = (0..dimensions.min(DIMENSIONS_MOST)).map(|at| read::<isize>(shape, at * 8));
    let len = lengths.map(|len| usize::try_from(len).unwrap_or(0)).product();
    // SAFETY: an array that has its elements itself has so many of them, one after the other, in
    // whatever order. The caller does not run Python code while it uses them.
    unsafe { std::slice::from_raw_parts(data, len) }
}
