//! Sizes, times and targets as people write them in Python.

use std::time::Duration;

use lowtide::device::{Bytes, ParseBytesError};
use lowtide::release::{Target, parse_time};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Parses a target: `"floor"`, `"512 MiB"`, a number of bytes, or `"free 2 GiB"`.
pub(crate) fn target(value: &Bound<'_, PyAny>) -> PyResult<Target> {
    let Ok(text) = value.extract::<String>() else { return Ok(Target::Under(size(value)?)) };
    let text = text.trim();
    if text.eq_ignore_ascii_case("floor") {
        return Ok(Target::Floor);
    }
    match text.split_once(' ') {
        Some((word, least)) if word.eq_ignore_ascii_case("free") => {
            Ok(Target::Free(parsed(least)?))
        }
        _ => bytes(text).map(Target::Under).map_err(|error| {
            let others = "\"free 2 GiB\" for what is to be free, or \"floor\"";
            PyValueError::new_err(format!("{error}; other targets are {others}"))
        }),
    }
}

/// Parses a number of bytes, or a size with its unit.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole and lies in the range of u64"
)]
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = value.extract::<u64>() {
        return Ok(Bytes(bytes));
    }
    // A float such as 5e7, if it is a whole number.
    if let Ok(number) = value.extract::<f64>()
        && (0.0..u64::MAX as f64).contains(&number)
        && number.fract() == 0.0
    {
        return Ok(Bytes(number as u64));
    }
    let text: String = value.extract().map_err(|_| not_a_size(value))?;
    parsed(&text)
}

/// Returns the error for a value that is neither a number of bytes nor a text.
fn not_a_size(value: &Bound<'_, PyAny>) -> PyErr {
    let help = "write a number of bytes, 0 or more, or a text such as \"2 GiB\"";
    if let Ok(number) = value.extract::<f64>() {
        return PyValueError::new_err(format!("{number} is not a size; {help}"));
    }
    let kind = value.get_type().name().map_or_else(|_| "it".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{kind} is not a size; {help}"))
}

fn parsed(text: &str) -> PyResult<Bytes> {
    bytes(text).map_err(PyValueError::new_err)
}

/// Parses a size with its unit. Bytes can be written as a number.
fn bytes(text: &str) -> Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|error| match error {
        ParseBytesError::NoUnit { text } => {
            format!("{text:?} has no unit; write \"{text} MiB\", or the number {text} for bytes")
        }
        error => error.to_string(),
    })
}

/// Checks that a number of seconds can be waited for.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("cannot wait for {value} s: {error}")))
}

/// Returns a number of bytes, or a size with its unit such as "512 MiB", in bytes.
#[pyfunction]
pub(crate) fn parse_bytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(size(value)?.0)
}

/// Returns a number of seconds, or a time with its unit such as "250ms", "30s", "5m" or "1h", in
/// seconds.
#[pyfunction]
pub(crate) fn parse_seconds(value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(number) = value.extract::<f64>() {
        return Ok(seconds(number)?.as_secs_f64());
    }
    let text: String = value.extract()?;
    let text = text.replace(' ', "");
    let time = parse_time(&text).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{text:?} is not a time; write seconds, or a time such as \"250ms\", \"30s\", \"5m\" or \"1h\""
        ))
    })?;
    Ok(time.as_secs_f64())
}
