//! Capsules of `DLPack`: objects of one library that show the memory of another's tensor.
//!
//! A capsule takes no part in garbage collection, and names neither the tensor nor its memory. The
//! address of the memory is in a structure that `DLPack` fixes.

use std::ffi::CStr;

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;

use crate::ask::object::{class_of, field};

/// The names of capsules that hold a tensor, and where the tensor begins in what they point to. A
/// capsule whose tensor was taken over has another name.
const NAMES: [(&CStr, usize); 4] = [
    (c"dltensor", 0),
    (c"numpy_dltensor", 0),
    (c"dltensor_versioned", VERSIONED),
    (c"numpy_dltensor_versioned", VERSIONED),
];
/// A tensor behind its version, its owner and its flags.
const VERSIONED: usize = 32;
/// Offsets in a tensor, in bytes.
const DATA: usize = 0;
const DEVICE_TYPE: usize = 8;
const DEVICE_ID: usize = 12;
const DIMENSIONS: usize = 16;
const BITS: usize = 21;
const LANES: usize = 22;
const SHAPE: usize = 24;
const OFFSET: usize = 40;

/// Returns whether objects of a type are capsules.
pub(crate) fn is_capsule_type(class: *mut PyTypeObject) -> bool {
    class == &raw mut ffi::PyCapsule_Type
}

/// Returns the tensor of a capsule, or `None` if it holds none.
pub(crate) fn tensor(capsule: *mut PyObject) -> Option<*const u8> {
    NAMES.iter().find_map(|(name, at)| {
        // SAFETY: it is alive; it may be anything.
        if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: it is a capsule of this name.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
        Some(pointer.cast::<u8>().cast_const().wrapping_add(*at))
    })
}

/// The memory that a capsule of `DLPack` shows.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct Shown {
    /// Its address on the device.
    address: usize,
    /// Its size, if its elements follow each other.
    bytes: u64,
    /// The number of the kind of device: 1 for host memory, 2 for CUDA.
    device_type: i32,
    /// The number of the device.
    device_id: i32,
}

/// Returns the memory that a capsule of `DLPack` shows; `None` for other objects and used capsules.
#[pyfunction]
pub fn dlpack_memory(capsule: &Bound<'_, PyAny>) -> Option<Shown> {
    if !is_capsule_type(class_of(capsule.as_ptr())) {
        return None;
    }
    let tensor = tensor(capsule.as_ptr())?;
    let shape: *const u8 = read(tensor, SHAPE);
    let dimensions = usize::try_from(read::<i32>(tensor, DIMENSIONS)).unwrap_or(0);
    let lengths = (0..dimensions).map(|at| read::<i64>(shape, at * 8));
    let elements: u64 = lengths.map(|len| u64::try_from(len).unwrap_or(0)).product();
    let bits = u64::from(read::<u8>(tensor, BITS)) * u64::from(read::<u16>(tensor, LANES));
    let offset = usize::try_from(read::<u64>(tensor, OFFSET)).unwrap_or(0);
    Some(Shown {
        address: read::<usize>(tensor, DATA).wrapping_add(offset),
        bytes: elements.saturating_mul(bits).div_ceil(8),
        device_type: read(tensor, DEVICE_TYPE),
        device_id: read(tensor, DEVICE_ID),
    })
}

fn read<T: Copy>(tensor: *const u8, offset: usize) -> T {
    // SAFETY: `DLPack` says what a tensor has where, and its capsule, which the caller has, keeps it
    // alive.
    unsafe { field(tensor, offset) }
}
