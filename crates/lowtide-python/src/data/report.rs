//! The report page, for Python.

use pyo3::prelude::*;

/// Returns the report page with its data, which is JSON.
#[pyfunction]
pub(crate) fn report_page(data: &str) -> String {
    lowtide_report::page(data)
}
