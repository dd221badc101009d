//! Names of the program that is looked at, made safe to print.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Returns text on one line, with control, bidirectional and invisible characters escaped: the same
/// as in receipts and on the command line. Lone surrogates become replacement characters.
#[pyfunction]
pub(crate) fn printable(text: &Bound<'_, PyString>) -> String {
    lowtide::printable(&text.to_string_lossy()).into_owned()
}
