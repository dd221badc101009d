//! The Python package `lowtide`, its native part.

mod release;

use pyo3::prelude::*;

/// What Python cannot do itself: walking its heap, and climbing ladders.
#[pymodule]
mod _native {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use crate::release::{
        Busy, Gate, Holder, Idle, Opened, Pass, Pauses, Reading, Receipt, Releaser, RungReceipt,
        Stages, Working, WouldNotFit, malloc_counts, malloc_trim, nvml_usage, parse_bytes,
        parse_seconds, process_memory,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
