//! Receipts as Python sees them: data first, and the text that everybody gets.

use std::sync::Arc;

use lowtide::{Bytes, RungOutcome};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

/// What a release did, by the driver's own numbers.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Receipt(pub(crate) Arc<lowtide::Receipt>);

impl Receipt {
    /// With lines of advice that were not known when it was written.
    pub(crate) fn with(receipt: Arc<lowtide::Receipt>, advice: Vec<String>) -> Receipt {
        if advice.is_empty() {
            return Receipt(receipt);
        }
        let mut receipt = Arc::unwrap_or_clone(receipt);
        receipt.advice.extend(advice);
        Receipt(Arc::new(receipt))
    }
}

#[pymethods]
impl Receipt {
    /// What it was for.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The device; `None` where there is none.
    #[getter]
    fn device(&self) -> Option<String> {
        self.0.device.map(|id| id.to_string())
    }

    /// What it was to reach, in words.
    #[getter]
    fn target(&self) -> Option<String> {
        self.0.target.map(|target| target.to_string())
    }

    /// What became of it: `released`, `partial`, `no-effect`, `pinned`, `busy`, `unverified`,
    /// `no-device` or `failed`.
    #[getter]
    fn verdict(&self) -> String {
        self.0.verdict.to_string()
    }

    /// Whether the release is proved, or there was nothing to prove.
    #[getter]
    fn proved(&self) -> bool {
        self.0.verdict.is_proved()
    }

    /// What came back, by the driver's numbers; `None` where it could not be asked.
    #[getter]
    fn freed_bytes(&self) -> Option<i64> {
        self.0.freed_bytes
    }

    /// Before anything was done.
    #[getter]
    fn before(&self) -> Reading {
        Reading(self.0.before)
    }

    /// After everything, settled.
    #[getter]
    fn after(&self) -> Reading {
        Reading(self.0.after)
    }

    /// Rung by rung.
    #[getter]
    fn rungs(&self) -> Vec<RungReceipt> {
        self.0.rungs.iter().cloned().map(RungReceipt).collect()
    }

    /// Who still holds something that should be gone.
    #[getter]
    fn holders(&self) -> Vec<Holder> {
        self.0.holders.iter().cloned().map(Holder).collect()
    }

    /// What is left and what would free it.
    #[getter]
    fn advice(&self) -> Vec<String> {
        self.0.advice.clone()
    }

    /// How long all of it took.
    #[getter]
    fn took_s(&self) -> f64 {
        self.0.took_s
    }

    /// Where what is left is, line by line, adding up to the driver's number; `None` where the device
    /// could not be asked.
    #[getter]
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.ledger.as_ref().map(|ledger| plain(py, ledger)).transpose()
    }

    /// The rung of this name in the last attempt that had it.
    fn rung(&self, name: &str) -> Option<RungReceipt> {
        self.0.rung(name).cloned().map(RungReceipt)
    }

    /// One line for a log.
    fn line(&self) -> String {
        self.0.line()
    }

    /// One line: what was reserved before and after, in MB to one decimal.
    fn reserved_line(&self) -> String {
        self.0.reserved_line()
    }

    /// The lines Before, After and Freed, in MB to two decimals.
    fn summary(&self) -> String {
        self.0.summary()
    }

    /// All of it as plain data; its schema is docs/schemas/receipt.json.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        plain(py, &*self.0)
    }

    /// Returns the text with Before, After and Freed and every rung.
    fn detailed(&self) -> String {
        self.0.detailed().to_string()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Receipt {}>", self.0.line())
    }
}

/// What was read at one moment.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Reading(pub(crate) lowtide::Reading);

#[pymethods]
impl Reading {
    /// In use on the device by everybody, says the driver.
    #[getter]
    fn driver_bytes(&self) -> Option<u64> {
        self.0.driver.map(number)
    }

    /// What the device has free, says the same.
    #[getter]
    fn driver_free_bytes(&self) -> Option<u64> {
        self.0.free.map(number)
    }

    /// This process's part, where the driver tells.
    #[getter]
    fn own_bytes(&self) -> Option<u64> {
        self.0.own.map(number)
    }

    /// What a release is measured by: this process's part, or everybody's where that is not told.
    #[getter]
    fn in_use_bytes(&self) -> Option<u64> {
        self.0.in_use().map(number)
    }

    /// In blocks that callers have, says the allocator.
    #[getter]
    fn allocated_bytes(&self) -> u64 {
        self.0.allocated.0
    }

    /// Taken from the device by it.
    #[getter]
    fn reserved_bytes(&self) -> u64 {
        self.0.reserved.0
    }

    fn __repr__(&self) -> String {
        let lowtide::Reading { driver, own, allocated, reserved, .. } = self.0;
        let told = |bytes: Option<Bytes>| {
            bytes.map_or_else(|| "not told".to_owned(), |bytes| bytes.to_string())
        };
        format!(
            "<Reading in use {}, own {}, reserved {reserved}, allocated {allocated}>",
            told(driver),
            told(own)
        )
    }
}

/// One rung of one attempt.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct RungReceipt(lowtide::RungReceipt);

#[pymethods]
impl RungReceipt {
    /// Its name.
    #[getter]
    fn rung(&self) -> &str {
        self.0.rung.as_str()
    }

    /// Which attempt, from 1.
    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// How it ended: `done`, `skipped`, `failed`, `panicked` or `cut-off`.
    #[getter]
    fn outcome(&self) -> &'static str {
        match &self.0.outcome {
            RungOutcome::Done => "done",
            RungOutcome::Skipped { .. } => "skipped",
            RungOutcome::Failed { .. } => "failed",
            RungOutcome::Panicked { .. } => "panicked",
            RungOutcome::CutOff { .. } => "cut-off",
        }
    }

    /// Why it ended so; `None` where it was done.
    #[getter]
    fn why(&self) -> Option<String> {
        match &self.0.outcome {
            RungOutcome::Done => None,
            RungOutcome::Skipped { why } | RungOutcome::Failed { why } => Some(why.clone()),
            RungOutcome::Panicked { message } => Some(message.clone()),
            RungOutcome::CutOff { limit_ms } => {
                Some(format!("it did not end within {limit_ms} ms"))
            }
        }
    }

    /// What it touched, with what it says that was, where it says so.
    #[getter]
    fn touched(&self) -> Vec<(String, Option<u64>)> {
        let touched = self.0.touched.iter();
        touched.map(|touch| (touch.what.clone(), touch.bytes.map(number))).collect()
    }

    /// Parts of it that did not apply, each by name and with why.
    #[getter]
    fn skipped(&self) -> Vec<String> {
        self.0.skipped.clone()
    }

    /// What it expected to give back, where it could tell.
    #[getter]
    fn expected_bytes(&self) -> Option<u64> {
        self.0.expected_bytes.map(number)
    }

    /// What it gave back, by the driver's numbers.
    #[getter]
    fn freed_bytes(&self) -> Option<i64> {
        self.0.freed_bytes
    }

    /// Before it.
    #[getter]
    fn before(&self) -> Reading {
        Reading(self.0.before)
    }

    /// After it, settled.
    #[getter]
    fn after(&self) -> Reading {
        Reading(self.0.after)
    }

    /// How long it took, without the time to settle.
    #[getter]
    fn took_s(&self) -> f64 {
        self.0.took_s
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<RungReceipt {}>", self.0)
    }
}

/// Somebody who still holds memory, by a path that a person can find.
#[pyclass(frozen, module = "lowtide._native")]
pub(crate) struct Holder(lowtide::Holder);

#[pymethods]
impl Holder {
    /// Where the reference is.
    #[getter]
    fn path(&self) -> &str {
        &self.0.path
    }

    /// What it keeps.
    #[getter]
    fn holds(&self) -> &str {
        &self.0.holds
    }

    /// How many references there are by this path.
    #[getter]
    fn count(&self) -> usize {
        self.0.count
    }

    /// What goes when the last of them goes, where that is known.
    #[getter]
    fn bytes(&self) -> Option<u64> {
        self.0.held.map(number)
    }

    /// What to write so that it lets go, where that is known.
    #[getter]
    fn cut(&self) -> Option<&str> {
        self.0.cut.as_deref()
    }

    fn __repr__(&self) -> String {
        let lowtide::Holder { path, holds, count, .. } = &self.0;
        format!("<Holder {path} holds {holds}, {count} reference(s)>")
    }
}

fn number(bytes: Bytes) -> u64 {
    bytes.0
}

/// Data of ours as plain data of Python.
pub(crate) fn plain<'py>(
    py: Python<'py>,
    data: &impl serde::Serialize,
) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(data);
    let value = value.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    as_python(py, &value)
}

fn as_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
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
            let values = values.iter().map(|value| as_python(py, value));
            values.collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, as_python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
