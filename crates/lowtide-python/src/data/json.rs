//! Rust data as plain Python data: dicts, lists, strings and numbers, by its JSON form.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

/// Returns data as plain Python data.
pub(crate) fn as_python<'py>(
    py: Python<'py>,
    data: &impl serde::Serialize,
) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(data);
    let value = value.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    converted(py, &value)
}

fn converted<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any(),
            (_, Some(number)) => number.into_pyobject(py)?.into_any(),
            _ => number.as_f64().into_pyobject(py)?,
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(values) => {
            let values = values.iter().map(|value| converted(py, value));
            values.collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, converted(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
