//! The Python package `lowtide`, its native part.

use pyo3::prelude::*;

/// What Python cannot do itself: walking its heap, and climbing ladders.
#[pymodule]
mod _native {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
